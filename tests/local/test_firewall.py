"""Apply the role firewall to two hosts, and check that only nodes of the inventory reach the ports of runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import require_program
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace
from tests.roles.modules import PLAYBOOKS
from tests.support.hosts import Host

PORT = 34567
LISTEN = "import socket; s = socket.create_server(('', {port})); print('listening', flush=True); s.accept()"
RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", re.MULTILINE)
PLAY = """
- hosts: all
  gather_facts: false
  roles: [firewall]
"""


def play(workspace: Workspace, folder: Path) -> dict[str, int]:
    """Apply the role to both hosts, and return for each of them how many tasks have changed something."""
    lab = workspace.lab
    nodes: dict[str, Any] = {
        host.name: {
            "become": False,
            "systemd": False,
            "family": "debian",
            "record": {"address": host.address, "port": 22},
        }
        for host in lab.hosts
    }
    hosts = {
        host.name: {
            "ansible_host": host.ssh_address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(lab.base / "user"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.base}/known_hosts",
            "ansible_python_interpreter": sys.executable,
            "firewall_file": str(lab.root / "orch.nft"),
        }
        for host in lab.hosts
    }
    inventory, playbook = folder / "hosts.json", folder / "play.yml"
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    playbook.write_text(PLAY)
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [program, "-i", inventory, "-e", json.dumps({"orch_nodes": nodes}), playbook]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
        "ANSIBLE_NOCOLOR": "1",
    }
    process = expect_exit(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120))
    return {name: int(count) for name, count in RECAP.findall(process.stdout)}


def can_connect(source: list[str], address: str) -> bool:
    """Return whether a connection opens from this machine, or from the host of an ssh command."""
    code = f"import socket; socket.create_connection(({address!r}, {PORT}), 2)"
    command = [*source, "python3", "-c", f'"{code}"'] if source else [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True).returncode == 0


def run_inside(host: Host, *command: str) -> None:
    subprocess.run(["nsenter", "--target", str(host.process.pid), "--net", *command], check=False)


def listen(host: Host) -> subprocess.Popen[bytes]:
    """Start a program that listens on all interfaces of the host, as hydra does."""
    command = ("nsenter", "--target", str(host.process.pid), "--net", sys.executable, "-c")
    process = subprocess.Popen([*command, LISTEN.format(port=PORT)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_nodes_reach_the_ports_of_runs(two_hosts: Workspace, tmp_path: Path) -> None:
    require_program("nft")
    first, second = two_hosts.lab.hosts
    with listen(second):
        assert can_connect([], second.ssh_address), "the port is open before"
    try:
        assert all(play(two_hosts, tmp_path).values())
        assert list(play(two_hosts, tmp_path).values()) == [0, 0]
        with listen(second):
            assert not can_connect([], second.ssh_address), "this machine is not in the inventory"
            assert can_connect(two_hosts.lab.ssh_command(first), second.address)
        run_inside(second, "nft", "delete", "table", "inet", "orch")
        assert play(two_hosts, tmp_path) == {first.name: 0, second.name: 1}
    finally:
        for host in (first, second):
            run_inside(host, "nft", "delete", "table", "inet", "orch")
