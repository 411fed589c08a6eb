"""Record the settings of the user's ssh configuration, and read them with OpenSSH and paramiko."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from orchestrator.load.records import NodeConnection, connection_blocks
from orchestrator.provisioning.plan import find_address
from orchestrator.provisioning.ssh_settings import (
    has_entries,
    host_entries,
    known_hosts,
    resolve_connection,
    ssh_config,
)
from tests.roles.modules import load_module
from tests.support.files import write_files
from tests.support.openssh import openssh_options
from tests.support.probes import ADDRESSES, TWO_PROBES, make_peer, make_probe


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an ssh configuration with a node behind two jump hosts."""
    text = f"""
Host node*
    HostName %h.example.com
    User alice
    Port 2200
    IdentityFile "{tmp_path}/%n ${{KIND}}"
    IdentityFile {tmp_path}/absent
    UserKnownHostsFile {tmp_path}/known {tmp_path}/known2
    GlobalKnownHostsFile "{tmp_path}/node1 key"
    ProxyJump bob@gate:2222
    RemoteCommand tmux attach
    RequestTTY force
    LocalForward 8080 localhost:80
Host gate
    HostName 192.0.2.1
    IdentityFile {tmp_path}/gate.key
    ProxyJump outer
Host outer
    HostName 192.0.2.2
    User carol
"""
    monkeypatch.setenv("KIND", "key")
    return write_files(tmp_path, {"node1 key": "", "gate.key": "", "config": text}) / "config"


def test_settings_of_the_node_and_its_jump_hosts_are_recorded(config: Path, tmp_path: Path) -> None:
    connection = resolve_connection(NodeConnection(host="node1"), config)
    (tmp_path / "orch").write_text(connection_blocks("n1", connection))
    expected = {
        "n1": {
            "hostname": "node1.example.com",
            "user": "alice",
            "port": "2200",
            "identityfile": f"{tmp_path}/node1 key",
            "userknownhostsfile": f"{tmp_path}/known {tmp_path}/known2",
            "proxyjump": "bob@gate:2222",
            "requesttty": "auto",
        },
        "gate": {"hostname": "192.0.2.1", "identityfile": f"{tmp_path}/gate.key", "proxyjump": "outer"},
        "outer": {"hostname": "192.0.2.2", "user": "carol"},
    }
    for host, values in expected.items():
        options = openssh_options("-F", str(tmp_path / "orch"), host)
        assert {name: options[name] for name in values} == values
        assert not {"remotecommand", "localforward"} & options.keys()
    result = paramiko.SSHConfig.from_path(str(tmp_path / "orch")).lookup("n1")
    assert (result["hostname"], result["proxyjump"]) == ("node1.example.com", "bob@gate:2222")
    assert result["globalknownhostsfile"] == f"{tmp_path}/node1 key"
    assert result["identityfile"] == [f"{tmp_path}/node1 key"]


def test_inventory_takes_precedence_over_the_configuration(config: Path) -> None:
    connection = NodeConnection(host="node1", user="dave", port="22", arguments="-o ProxyJump=none")
    result = resolve_connection(connection, config)
    assert (result.user, result.port, result.hops) == ("dave", "22", {})
    assert "ProxyJump=gate" not in result.arguments


def test_hostname_that_a_node_reports_and_localhost_are_written_on_no_node() -> None:
    for reported in ("localhost", "NODE1", "10.0.0.9", "pypi.org"):
        facts = replace(make_probe().facts, hostname=reported)
        probes, ports = (make_probe(facts=facts), TWO_PROBES[1]), dict.fromkeys(ADDRESSES, 22)
        expected = [{"address": "10.0.0.1", "names": ["node0"]}, {"address": "10.0.0.2", "names": ["node1"]}]
        assert host_entries(probes, ADDRESSES) == expected
        lines = ssh_config(probes, ADDRESSES, ports, "/r").splitlines()
        hosts = [line for line in lines if line.startswith("Host ")]
        assert hosts == ["Host node0 10.0.0.1", "Host node1 10.0.0.2", "Host *"]
        assert len(known_hosts(probes, ADDRESSES, ports).splitlines()) == 2

    for name in ("localhost", "LOCALHOST.lab", "10.0.0.1", "fe80::1"):
        assert host_entries((make_probe().model_copy(update={"name": name}),), {name: "10.0.0.1"}) == []


def test_address_of_a_node_is_not_taken_from_other_nodes() -> None:
    forged = {"node1": make_peer("node1", address="10.6.6.6")}
    facts = replace(make_probe().facts, interfaces={"eth0": ("10.0.0.2",)})
    correct = make_probe("node1", peers={"node1": make_peer("node1")}, facts=facts)
    assert find_address("node1", (make_probe(peers=forged), correct)) == "10.0.0.2"


def test_module_rejects_entries_that_would_be_other_lines() -> None:
    hosts = load_module("orch_hosts")
    for node in (
        {"address": "10.0.0.1", "names": ["node0", "a\n1.2.3.4 pypi.org"]},
        {"address": "10.0.0.1\n1.2.3.4", "names": ["node0"]},
        {"address": "10.0.0.1", "names": ["node0 pypi.org"]},
    ):
        with pytest.raises(ValueError, match=r".+"):
            hosts.check("lab", [node])
    hosts.check("lab", [{"address": "fe80::1%eth0", "names": ["node0", "n.example.com"]}])
    with pytest.raises(ValueError, match="not a valid cluster name"):
        hosts.check("lab\n1.2.3.4 pypi.org", [])


def test_entries_of_etc_hosts_are_complete_without_loopback_addresses() -> None:
    entries = host_entries(TWO_PROBES, ADDRESSES)
    block = "10.0.0.1 node0\n10.0.0.2 node1\n"
    assert not has_entries(make_probe(), entries)
    assert has_entries(make_probe(hosts_file=block), entries)
    for earlier in ("127.0.1.1 node0\n", "10.0.0.9 x node0\n"):
        assert not has_entries(make_probe(hosts_file=earlier + block), entries)
