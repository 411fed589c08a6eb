"""Run `orch provision` on bare, failing and interrupted clusters."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sites import (
    LOCK,
    ROOT,
    SITE_PACKAGES,
    STACK,
    TOKEN,
    Site,
    drift,
    nodes_by_name,
    run_on,
    wait_for_output,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_provision_makes_a_verified_cluster_of_bare_nodes(first_provision: tuple[Site, dict[str, Any]]) -> None:
    site, report = first_provision
    assert report["state"] == "done"
    assert f"environment {STACK}" in drift(report)["node0"]
    for node, peer in (("node0", "node1"), ("node1", "node2"), ("node2", "node0")):
        assert json.loads(run_on(site, node, "cat", f"{ROOT}/env.json")) == {"LAB": "one"}
        assert run_on(site, node, "ssh", "-F", f"{ROOT}/ssh/config", peer, "hostname").strip() == peer
        assert run_on(site, node, "getent", "hosts", peer).split()[0] == site.cluster.address(peer)
    rows = site.orch(command="nodes")["nodes"]
    assert [row["node"] for row in rows] == list(site.cluster.nodes)
    assert {(row["state"], row["interface"]) for row in rows} == {("verified", "eth0")}
    assert len({row["fingerprint"] for row in rows}) == 1


def test_secret_reaches_only_the_secrets_file_of_nodes(site: Site) -> None:
    assert json.loads(run_on(site, "node0", "cat", f"{ROOT}/secrets.json")) == {"HF_TOKEN": TOKEN}
    assert run_on(site, "node0", "stat", "-c", "%a", f"{ROOT}/secrets.json").strip() == "600"
    state_files = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert state_files
    assert not [path for path in state_files if TOKEN.encode() in path.read_bytes()]
    search = ("grep", "-rl", "--exclude-dir=stacks", TOKEN, "/home/vagrant", "/tmp", "/var/log")
    assert site.cluster.exec("node0", search).split() == [f"{ROOT}/secrets.json"]


def test_provision_continues_without_a_frozen_and_a_dead_node(site: Site) -> None:
    site.cluster.pause("node1")
    site.cluster.kill("node2")
    run_on(site, "node0", "rm", f"{ROOT}/train/node.py")
    began = time.monotonic()
    report = nodes_by_name(site.orch(code=1))
    assert time.monotonic() - began < 90
    assert [report[name]["failed"] for name in ("node0", "node1", "node2")] == [0, 1, 1]
    assert "does not respond" in report["node2"]["problem"]
    assert run_on(site, "node0", "ls", f"{ROOT}/train/node.py")


def test_full_disk_is_explained_before_and_while_installing(site: Site) -> None:
    """Provision as root, whose folder is /opt/orch; here it is on a small file system."""
    root = "/opt/orch"
    site.cluster.exec("node2", ("sh", "-c", f"mkdir -p {root} && mount -t tmpfs -o size=100m,mode=755 none {root}"))
    site.write_inventory("node2", ansible_user="root")
    report_of_check = nodes_by_name(site.orch(code=1))["node2"]
    assert f"0.1 GiB free for {root}, needs 5.0" in report_of_check["problem"]
    assert report_of_check["changed"] == 0
    site.write_inventory("node2", ansible_user="root", orch_limits={"disk_gb": 0})
    report_of_installation = nodes_by_name(site.orch(code=1))["node2"]
    assert "its disk is full" in report_of_installation["problem"]
    assert ".lock" not in site.cluster.exec("node2", ("ls", "-A", root)).split()
    site.cluster.exec("node2", ("umount", root))


def write_wrong_known_hosts(site: Site, path: Path) -> str:
    """Write a file of host keys in which node0 has that of node1, and return the options of ssh that use it."""
    node0, node1 = site.cluster.address("node0"), site.cluster.address("node1")
    known_hosts = (site.cluster.state / "known_hosts").read_text().splitlines()
    lines = [line for line in known_hosts if line.startswith(node1)]
    path.write_text("\n".join([*lines, *(line.replace(node1, node0) for line in lines)]) + "\n")
    return f"-o UserKnownHostsFile={path} -o StrictHostKeyChecking=yes"


def test_interrupted_provision_refuses_others_meanwhile_and_removes_its_locks(site: Site, tmp_path: Path) -> None:
    """Start a second controller, which has a wrong host key of node0, while the first one has connections to both."""
    run_on(site, "node2", "mv", f"{SITE_PACKAGES}/torch", "/home/vagrant/torch")
    second_controller = replace(site, folder=tmp_path)
    options = write_wrong_known_hosts(site, tmp_path / "known_hosts")
    second_controller.write_inventory("node0", "node1", ansible_ssh_common_args=options)
    process = site.start()
    wait_for_output(process, "lock: Make the lock present")
    second_process = second_controller.start("--json")
    assert f"process {process.pid}" in site.orch(code=1)["stderr"]
    report = nodes_by_name(json.loads(second_process.communicate(timeout=120)[0]))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (process.returncode, second_process.returncode) == (130, 1)
    assert "host key has changed" in report["node0"]["problem"]
    assert f"(process {process.pid}) has been provisioning this node since" in report["node1"]["problem"]
    assert f"if it has ended, remove {LOCK}" in report["node1"]["problem"]
    assert [node["changed"] for node in report.values()] == [0, 0]
    for node in site.cluster.nodes:
        assert "No such file" in run_on(site, node, "sh", "-c", f"ls {LOCK} 2>&1; true")
    # Programs of the interrupted provision may still run on the node.
    site.cluster.exec("node2", ("sh", "-c", "pkill -KILL -u vagrant; true"))
    wait_until(lambda: not site.cluster.processes("node2"), "the end of the interrupted programs")
    restore = f"rm -rf {SITE_PACKAGES}/torch; mv /home/vagrant/torch {SITE_PACKAGES}"
    run_on(site, "node2", "sh", "-ec", restore)  # to install it takes 20 CPU seconds


def test_same_command_completes_a_node_that_was_killed_while_installing(site: Site) -> None:
    run_on(site, "node2", "rm", "-r", f"{SITE_PACKAGES}/sympy")
    run_on(site, "node0", "rm", f"{ROOT}/train/node.py")
    process = site.start("--json")
    wait_until(lambda: is_installing(site, "node2"), "a running uv")
    site.cluster.kill("node2")
    report = nodes_by_name(json.loads(process.communicate(timeout=120)[0]))
    assert process.returncode == 1
    assert [report[node]["failed"] for node in site.cluster.nodes] == [0, 0, 1]
    assert report["node2"]["problem"].startswith("Install the stack")
    assert run_on(site, "node0", "ls", f"{ROOT}/train/node.py")
    site.cluster.start("node2")
    changes = drift(site.orch())
    assert "sympy" in changes["node2"]
    assert "/etc/hosts" not in changes["node2"], "a restart of the node restores the file of docker"
    assert (changes["node0"], changes["node1"]) == (set(), set())
    assert {row["state"] for row in site.orch(command="nodes")["nodes"]} == {"verified"}


def is_installing(site: Site, node: str) -> bool:
    return any("uv" in line and " install " in line for line in site.cluster.processes(node))


def test_provision_uses_port_and_jump_host_of_inventory(site: Site) -> None:
    site.cluster.exec("node1", ("/usr/sbin/sshd", "-p", "2222"))
    known_hosts = site.folder / "known_hosts"
    lines = (site.cluster.state / "known_hosts").read_text().splitlines()
    address = site.cluster.address("node1")
    lines_with_port = [line.replace(address, f"[{address}]:2222", 1) for line in lines]
    known_hosts.write_text("\n".join(lines + lines_with_port) + "\n")
    options = f"-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    jump = f"ssh -F {site.cluster.ssh_config} -W %h:%p node0"
    arguments = f"{options} -o ProxyCommand='{jump}'"
    site.write_inventory("node1", ansible_port=2222, ansible_ssh_common_args=arguments)
    assert site.orch("--dry-run", code=1)["nodes"][0]["failed"] == 0
