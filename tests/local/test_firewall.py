"""The role firewall on two hosts: what is not a node of the inventory reaches no port of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.workspaces import Workspace
from tests.roles.modules import PLAYBOOKS
from tests.support.hosts import Host

PORT = 34567
SERVE = "import socket; s = socket.create_server(('', {port})); print('there', flush=True); s.accept()"
RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", re.MULTILINE)
PLAY = """
- hosts: all
  gather_facts: false
  roles: [firewall]
"""


@pytest.fixture
def nft() -> None:
    if not shutil.which("nft", path="/usr/sbin:/usr/bin"):
        if "CI" in os.environ:
            pytest.fail("no nft: apt-get install nftables")
        pytest.skip("no nft on this machine: apt-get install nftables")


def play(ground: Workspace, folder: Path, *words: str) -> dict[str, int]:
    """The role on both hosts; -> node -> how many tasks have changed something."""
    lab = ground.lab
    nodes: dict[str, Any] = {
        host.name: {
            "become": False,
            "systemd": False,
            "family": "debian",
            "record": {"address": host.address, "port": 22},
        }
        for host in lab.hosts
    }
    options = f"-o UserKnownHostsFile={lab.base}/known_hosts"
    hosts = {
        host.name: {
            "ansible_host": host.reached,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(lab.base / "user"),
            "ansible_ssh_common_args": options,
            "ansible_python_interpreter": sys.executable,
            "firewall_file": str(lab.root / "orch.nft"),
        }
        for host in lab.hosts
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (folder / "play.yml").write_text(PLAY)
    process = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            folder / "hosts.json",
            "-e",
            json.dumps({"orch_nodes": nodes}),
            *words,
            folder / "play.yml",
        ],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(PLAYBOOKS.parent / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return {name: int(count) for name, count in RECAP.findall(process.stdout)}


def reaches(source: list[str], address: str) -> bool:
    code = f"import socket; socket.create_connection(({address!r}, {PORT}), 2)"
    process = subprocess.run(
        [*source, "python3", "-c", f'"{code}"'] if source else [sys.executable, "-c", code], capture_output=True
    )
    return process.returncode == 0


@pytest.mark.usefixtures("nft")
def test_only_nodes_reach_the_ports_of_runs(two_hosts: Workspace, tmp_path: Path) -> None:
    first, second = two_hosts.lab.hosts
    with serving(two_hosts, second):
        assert reaches([], second.reached), "before"
    try:
        assert all(play(two_hosts, tmp_path).values())
        assert list(play(two_hosts, tmp_path).values()) == [0, 0]
        with serving(two_hosts, second):
            assert not reaches([], second.reached), "this machine is no node"
            assert reaches(two_hosts.lab.reach(first), second.address)
        inside(second, "nft", "delete", "table", "inet", "orch")
        assert play(two_hosts, tmp_path) == {first.name: 0, second.name: 1}
    finally:
        for host in (first, second):
            inside(host, "nft", "delete", "table", "inet", "orch")


def inside(host: Host, *command: str) -> None:
    subprocess.run(["nsenter", "--target", str(host.process.pid), "--net", *command], check=False)


def serving(ground: Workspace, host: Host) -> subprocess.Popen[bytes]:
    """Somebody who listens on all interfaces of the host, as hydra does."""
    command = ("nsenter", "--target", str(host.process.pid), "--net", sys.executable, "-c")
    process = subprocess.Popen([*command, SERVE.format(port=PORT)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process
