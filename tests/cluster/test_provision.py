"""Run `orch provision` on bare nodes, beside failing nodes and other controllers, and interrupt it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import sites
from tests.cluster.conftest import docker
from tests.support.processes import find_processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_provision_verifies_and_keeps_its_secret_in_a_file(first_provision: tuple[sites.Site, dict[str, Any]]) -> None:
    site, report = first_provision
    assert report["state"] == "done"
    assert f"environment {sites.STACK}" in sites.drift(report)["node0"]
    for node, peer in (("node0", "node1"), ("node1", "node2"), ("node2", "node0")):
        assert json.loads(sites.run_on(site, node, "cat", f"{sites.ROOT}/env.json")) == {"LAB": "one"}
        assert sites.run_on(site, node, "ssh", "-F", f"{sites.ROOT}/ssh/config", peer, "hostname").strip() == peer
        assert sites.run_on(site, node, "getent", "hosts", peer).split()[0] == site.cluster.address(peer)
    rows = site.orch(command="nodes")["nodes"]
    assert [row["node"] for row in rows] == list(site.cluster.nodes)
    assert {(row["state"], row["interface"]) for row in rows} == {("verified", "eth0")}
    assert len({row["fingerprint"] for row in rows}) == 1
    secrets = f"{sites.ROOT}/secrets.json"
    assert json.loads(sites.run_on(site, "node0", "cat", secrets)) == {"HF_TOKEN": sites.TOKEN}
    assert sites.run_on(site, "node0", "stat", "-c", "%a", secrets).strip() == "600"
    state_files = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert state_files
    assert not [path for path in state_files if sites.TOKEN.encode() in path.read_bytes()]
    search = ("grep", "-rl", "--exclude-dir=stacks", sites.TOKEN, "/home/vagrant", "/tmp", "/var/log")
    assert site.cluster.exec("node0", search).split() == [secrets]


def write_wrong_known_hosts(site: sites.Site, path: Path) -> str:
    """Write a file of host keys in which node0 has that of node1, and return the options of ssh that use it."""
    node0, node1 = site.cluster.address("node0"), site.cluster.address("node1")
    known_hosts = (site.cluster.state / "known_hosts").read_text().splitlines()
    lines = [line for line in known_hosts if line.startswith(node1)]
    path.write_text("\n".join([*lines, *(line.replace(node1, node0) for line in lines)]) + "\n")
    return f"-o UserKnownHostsFile={path} -o StrictHostKeyChecking=yes"


def test_interrupted_provision_refuses_others_meanwhile_and_removes_its_locks(site: sites.Site, tmp_path: Path) -> None:
    """Start a second controller, which has a wrong host key of node0, while the first one has connections to both.

    node2 starts to install a package only after the end of a program that holds the lock of its stacks.
    """
    sites.run_on(site, "node2", "mv", f"{sites.SITE_PACKAGES}/networkx", "/home/vagrant")
    holder = ("flock", f"{sites.ROOT}/stacks/.lock", "sleep", "600")
    docker("exec", "--detach", "--user", "vagrant", site.cluster.container("node2"), *holder)
    second_controller = replace(site, folder=tmp_path)
    options = write_wrong_known_hosts(site, tmp_path / "known_hosts")
    second_controller.write_inventory("node0", "node1", ansible_ssh_common_args=options)
    process = site.start()
    sites.wait_for_output(process, "lock: Make the lock present")
    second_process = second_controller.start("--json")
    assert f"process {process.pid}" in site.orch(code=1)["stderr"]
    report = sites.nodes_by_name(json.loads(second_process.communicate(timeout=120)[0]))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (process.returncode, second_process.returncode) == (130, 1)
    assert "host key has changed" in report["node0"]["problem"]
    assert f"(process {process.pid}) has been provisioning this node since" in report["node1"]["problem"]
    assert f"if it has ended, remove {sites.LOCK}" in report["node1"]["problem"]
    assert [node["changed"] for node in report.values()] == [0, 0]
    for node in site.cluster.nodes:
        assert "No such file" in sites.run_on(site, node, "sh", "-c", f"ls {sites.LOCK} 2>&1; true")
    # Programs of the interrupted provision may still run on the node.
    site.cluster.exec("node2", ("sh", "-c", "pkill -KILL -u vagrant; true"))
    wait_until(lambda: not site.cluster.processes("node2"), "the end of the interrupted programs")
    sites.run_on(site, "node2", "mv", "/home/vagrant/networkx", sites.SITE_PACKAGES)


def test_same_command_completes_nodes_that_were_frozen_or_killed_while_installing(site: sites.Site) -> None:
    sites.run_on(site, "node2", "rm", "-r", f"{sites.SITE_PACKAGES}/networkx")
    sites.run_on(site, "node0", "rm", f"{sites.ROOT}/train/node.py")
    site.cluster.pause("node1")
    process = site.start("--json")
    wait_until(stop_installing, "a running uv")
    site.cluster.kill("node2")
    report = sites.nodes_by_name(json.loads(process.communicate(timeout=300)[0]))
    assert process.returncode == 1
    assert [report[node]["failed"] for node in site.cluster.nodes] == [0, 1, 1]
    assert report["node2"]["problem"].startswith("Install the stack")
    assert sites.run_on(site, "node0", "ls", f"{sites.ROOT}/train/node.py")
    site.cluster.repair()
    changes = sites.drift(site.orch())
    assert sites.run_on(site, "node2", "ls", f"{sites.SITE_PACKAGES}/networkx")
    assert "/etc/hosts" not in changes["node2"], "a restart of the node restores the file of docker"
    assert changes["node0"] == {"ssh/config", "ssh/known_hosts"}, "the frozen node was left out of them"
    assert not changes["node1"]
    assert {row["state"] for row in site.orch(command="nodes")["nodes"]} == {"verified"}


def stop_installing() -> bool:
    """Stop uv if it is installing a package on a node, whose processes are in /proc of this machine."""
    pids = [pid for pid, line in find_processes(f"{sites.ROOT}/bin/uv").items() if " install " in line]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return bool(pids)
