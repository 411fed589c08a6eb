"""Record the settings of the user's ssh configuration, and read them with OpenSSH and paramiko."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from orchestrator.load.facts import NodeConnection
from orchestrator.load.records import connection_blocks
from orchestrator.provisioning.ssh_settings import resolve_connection
from tests.conftest import require_program


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
