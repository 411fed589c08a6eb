"""Record the settings of the user's ssh configuration, and read them with OpenSSH and paramiko."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from orchestrator.load.records import NodeConnection, connection_blocks
from orchestrator.provisioning import probe
from orchestrator.provisioning.plan import find_address
from orchestrator.provisioning.ssh_settings import (
    has_entries,
    host_entries,
    known_hosts,
    resolve_connection,
    ssh_config,
)
from tests.conftest import require_program
from tests.roles.modules import load_module
from tests.support.node_responses import make_probe_result, make_reported_facts
from tests.support.probes import ADDRESSES, TWO_PROBES, make_probe

HOSTNAMES = ["localhost", "localhost.localdomain", "node1", "NODE1", "10.0.0.9", "pypi.org", "proxy", "own"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return an ssh configuration with a node behind two jump hosts."""
    for name in ("a key", "gate.key"):
        (tmp_path / name).touch()
    path = tmp_path / "config"
    path.write_text(
        f"""
Host node*
    HostName %h.example.com
    User alice
    Port 2200
    IdentityFile "{tmp_path}/a key"
    IdentityFile {tmp_path}/absent
    UserKnownHostsFile {tmp_path}/known {tmp_path}/known2
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
    )
    return path


def test_settings_of_the_node_and_its_jump_hosts_are_recorded(config: Path, tmp_path: Path) -> None:
    require_program("ssh")
    connection = resolve_connection(NodeConnection(host="node1"), config)
    (tmp_path / "orch").write_text(connection_blocks("n1", connection))
    command = ["ssh", "-G", "-F", str(tmp_path / "orch")]
    expected = {
        "n1": {
            "hostname": "node1.example.com",
            "user": "alice",
            "port": "2200",
            "identityfile": f"{tmp_path}/a key",
            "userknownhostsfile": f"{tmp_path}/known {tmp_path}/known2",
            "proxyjump": "bob@gate:2222",
            "requesttty": "auto",
        },
        "gate": {"hostname": "192.0.2.1", "identityfile": f"{tmp_path}/gate.key", "proxyjump": "outer"},
        "outer": {"hostname": "192.0.2.2", "user": "carol"},
    }
    for host, values in expected.items():
        output = subprocess.run([*command, host], capture_output=True, text=True, check=True).stdout
        options = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
        assert {name: options[name] for name in values} == values
        assert not {"remotecommand", "localforward"} & options.keys()
    result = paramiko.SSHConfig.from_path(str(tmp_path / "orch")).lookup("n1")
    assert (result["hostname"], result["proxyjump"]) == ("node1.example.com", "bob@gate:2222")
    assert result["identityfile"] == [f"{tmp_path}/a key"]


def test_inventory_takes_precedence_over_the_configuration(config: Path) -> None:
    connection = NodeConnection(host="node1", user="dave", port="22", arguments="-o ProxyJump=none")
    result = resolve_connection(connection, config)
    assert (result.user, result.port, result.hops) == ("dave", "22", {})
    assert "ProxyJump=gate" not in result.arguments


def test_host_that_no_configuration_names_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    connection = NodeConnection(host="10.0.0.7", user="eve", key="/key", arguments="-o Compression=yes")
    assert resolve_connection(connection, tmp_path / "empty") == connection


def test_hostname_that_a_node_reports_is_written_on_no_node() -> None:
    for reported in HOSTNAMES:
        probes = tuple(
            probe.make_probe(
                name, probe.parse_result(name, make_probe_result(facts=make_reported_facts(hostname=hostname))), 0.0
            )
            for name, hostname in (("node0", reported), ("node1", "machine1"))
        )
        addresses = {"node0": "10.0.0.1", "node1": "10.0.0.2"}
        assert host_entries(probes, addresses) == [
            {"address": "10.0.0.1", "names": ["node0"]},
            {"address": "10.0.0.2", "names": ["node1"]},
        ]
        hosts = [
            line
            for line in ssh_config(probes, addresses, dict.fromkeys(addresses, 22), "/r").splitlines()
            if line.startswith("Host ")
        ]
        assert hosts == ["Host node0 10.0.0.1", "Host node1 10.0.0.2", "Host *"]
        assert len(known_hosts(probes, addresses, dict.fromkeys(addresses, 22)).splitlines()) == 2


def test_localhost_and_addresses_of_an_inventory_are_not_written_as_names() -> None:
    for name in ("localhost", "LOCALHOST.lab", "10.0.0.1", "fe80::1"):
        node = probe.make_probe(name, probe.parse_result(name, make_probe_result()), 0.0)
        assert host_entries((node,), {name: "10.0.0.1"}) == []


def test_address_of_a_node_is_not_taken_from_other_nodes() -> None:
    forged_result = make_probe_result(
        peers={"node1": {"address": "10.6.6.6", "source": "", "resolves": [], "error": ""}}
    )
    correct_result = make_probe_result(
        facts=make_reported_facts(interfaces={"eth0": ["10.0.0.2"]}),
        peers={"node1": {"address": "10.0.0.2", "source": "", "resolves": [], "error": ""}},
    )
    probes = tuple(
        probe.make_probe(name, probe.parse_result(name, result), 0.0)
        for name, result in (("node0", forged_result), ("node1", correct_result))
    )
    assert find_address("node1", probes) == "10.0.0.2"


def test_module_rejects_entries_that_would_be_other_lines() -> None:
    for node in (
        {"address": "10.0.0.1", "names": ["node0", "a\n1.2.3.4 pypi.org"]},
        {"address": "10.0.0.1\n1.2.3.4", "names": ["node0"]},
        {"address": "10.0.0.1", "names": ["node0 pypi.org"]},
        {"address": "node0", "names": ["node0"]},
    ):
        hosts = load_module("orch_hosts")
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
    assert not has_entries(make_probe(hosts_file="127.0.1.1 node0\n" + block), entries)
