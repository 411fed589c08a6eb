"""Run `orch provision` on bare, drifted, failing, interrupted and growing clusters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.load.clusters import local_facts
from tests.cluster.conftest import CPUSETS
from tests.cluster.lab import TWO_NODES, run_orch_json, small_bert_qa
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
DRIFTED_FILES = {"env.json", "train/node.py", "train/unknown.py"}


def test_provision_makes_a_verified_cluster_of_bare_nodes(first_provision: tuple[Site, dict[str, Any]]) -> None:
    site, report = first_provision
    assert report["state"] == "done"
    for node, peer in (("node0", "node1"), ("node1", "node0")):
        python = f"{STACK}/bin/python"
        assert run_on(site, node, python, "-c", "import torch; print(torch.__version__)").startswith("2")
        assert json.loads(run_on(site, node, "cat", f"{ROOT}/env.json")) == {"LAB": "one"}
        assert run_on(site, node, "ssh", "-F", f"{ROOT}/ssh/config", peer, "hostname").strip() == peer
        assert run_on(site, node, "getent", "hosts", peer).split()[0] == site.cluster.address(peer)
        assert run_on(site, node, "ls", f"{ROOT}/train/node.py")


def test_provision_records_facts(site: Site) -> None:
    rows = {row["node"]: row for row in site.orch(command="nodes")["nodes"]}
    assert {row["state"] for row in rows.values()} == {"verified"}
    assert {row["interface"] for row in rows.values()} == {"eth0"}
    assert len({row["fingerprint"] for row in rows.values()}) == 1


def test_training_uses_ccl_and_best_precision_and_brings_metrics_and_checkpoints(site: Site) -> None:
    """Train bert-qa on two nodes over ssh."""
    run = site.train(*small_bert_qa(), *TWO_NODES)
    precision = "bf16" if local_facts(sys.executable).bf16 else "fp32"
    assert (run["state"], run["backend"], run["precision"]) == ("done", "ccl", precision)
    assert run["result"]["world_size"] == 2
    folder = Path(run["folder"])
    steps = (folder / "output" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[-1])["step"] == 6
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {event["node"] for event in events if event["event"] == "joined"} == {"node0", "node1"}
    ranks = folder / "ranks"
    assert "note: " in (ranks / "rank-0.log").read_text()
    assert (ranks / "rank-1.metrics.jsonl").stat().st_size
    assert commands_with(run["run_id"]) == []
    first_fetch = run_orch_json(site, "fetch", run["run_id"], "--only", "checkpoint-*")
    assert first_fetch["brought"]
    second_fetch = run_orch_json(site, "fetch", run["run_id"], "--only", "checkpoint-*")
    assert (second_fetch["files"], second_fetch["brought"]) == (first_fetch["files"], [])


def commands_with(run_id: str) -> list[str]:
    """Return the command lines that contain the run's id, on this machine and on all nodes.

    The nodes are containers of this machine, so its /proc lists their processes.
    """
    command_lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if run_id.encode() in command_line:
            command_lines.append(command_line.decode())
    return command_lines


def test_secret_reaches_only_the_secrets_file_of_nodes(site: Site) -> None:
    assert json.loads(run_on(site, "node0", "cat", f"{ROOT}/secrets.json")) == {"HF_TOKEN": TOKEN}
    assert run_on(site, "node0", "stat", "-c", "%a", f"{ROOT}/secrets.json").strip() == "600"
    state_files = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert state_files
    assert not [path for path in state_files if TOKEN.encode() in path.read_bytes()]
    search = ("grep", "-rl", "--exclude-dir=stacks", TOKEN, "/home/vagrant", "/tmp", "/var/log")
    assert site.cluster.exec("node0", search).split() == [f"{ROOT}/secrets.json"]


def command_lines_with_token(process: subprocess.Popen[str]) -> list[Path]:
    """Wait for a process, and return all command lines of /proc, also of nodes, that contained the secret meanwhile."""
    leaks = []
    while process.poll() is None:
        leaks += [path for path in Path("/proc").glob("[0-9]*/cmdline") if contains_token(path)]
        time.sleep(0.01)  # shorter than the life of any program that gets arguments
    return leaks


def contains_token(path: Path) -> bool:
    try:
        return TOKEN.encode() in path.read_bytes()
    except OSError:
        return False


def test_second_provision_changes_nothing_and_is_twice_as_fast(first_provision: tuple[Site, dict[str, Any]]) -> None:
    site, first_report = first_provision
    for _ in range(3):  # other work on the machine can only slow a run down
        report = site.orch()
        assert [node["changed"] for node in nodes_by_name(report).values()] == [0, 0]
        if report["seconds"] < first_report["seconds"] / 2:
            return
    pytest.fail(f"{report['seconds']} s, the first time {first_report['seconds']} s")


def test_provision_reports_and_repairs_only_drift(site: Site) -> None:
    user_file = "data/mine.txt"
    run_on(site, "node1", "sh", "-c", f"echo x >> {SITE_PACKAGES}/transformers/__init__.py")
    run_on(site, "node1", "rm", f"{ROOT}/train/node.py")
    run_on(site, "node1", "touch", f"{ROOT}/train/unknown.py", f"{ROOT}/{user_file}")
    run_on(site, "node1", "sh", "-c", f"echo '{{}}' > {ROOT}/env.json")
    run_on(site, "node1", "rm", "-r", f"{SITE_PACKAGES}/accelerate", f"{STACK}/mpi/mpich")
    expected = {"transformers", "accelerate", "mpich"} | DRIFTED_FILES
    assert drift(site.orch("--dry-run", code=1)) == {"node0": set(), "node1": expected}
    process = site.start("--json")
    leaks = command_lines_with_token(process)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert drift(report) == {"node0": set(), "node1": expected}, "--dry-run repairs nothing"
    assert run_on(site, "node1", "ls", f"{ROOT}/{user_file}")
    assert not leaks, "command lines contain the secret"


def test_provision_continues_without_a_frozen_and_a_dead_node(site: Site) -> None:
    site.write_inventory("node0", "node1", "node2")
    site.cluster.pause("node1")
    site.cluster.kill("node2")
    run_on(site, "node0", "rm", f"{ROOT}/train/node.py")
    began = time.monotonic()
    report = nodes_by_name(site.orch(code=1))
    assert time.monotonic() - began < 90
    assert [report[name]["failed"] for name in ("node0", "node1", "node2")] == [0, 1, 1]
    assert "does not respond" in report["node2"]["problem"]
    assert run_on(site, "node0", "ls", f"{ROOT}/train/node.py")


def test_interrupt_ends_provision_and_removes_its_locks(site: Site) -> None:
    """Check also that a second provision of the same controller is refused meanwhile."""
    process = site.start()
    wait_for_output(process, "stack: Compare the environment")
    error = site.orch(code=1)["stderr"]
    assert f"process {process.pid}" in error
    time.sleep(3)  # until wheels are being copied
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for node in site.cluster.nodes:
        assert "No such file" in run_on(site, node, "sh", "-c", f"ls {LOCK} 2>&1; true")


def test_same_command_completes_a_node_that_was_killed_while_installing(site: Site) -> None:
    # Programs of the interrupted provision may still run on the node.
    site.cluster.exec("node2", ("sh", "-c", "pkill -KILL -u vagrant; true"))
    wait_until(lambda: not processes_on_node2(site), "the end of the interrupted programs")
    run_on(site, "node2", "rm", "-rf", f"{ROOT}/stacks")
    run_on(site, "node0", "rm", f"{ROOT}/train/node.py")
    process = site.start("--json")
    wait_until(lambda: any("uv" in line and " install " in line for line in processes_on_node2(site)), "a running uv")
    site.cluster.kill("node2")
    report = nodes_by_name(json.loads(process.communicate(timeout=120)[0]))
    assert process.returncode == 1
    assert [report[node]["failed"] for node in ("node0", "node1", "node2")] == [0, 0, 1]
    assert report["node2"]["problem"].startswith("Install the stack")
    assert run_on(site, "node0", "ls", f"{ROOT}/train/node.py")
    site.cluster.start("node2")
    # uv unpacks all wheels before it installs the first one.
    changes = drift(site.orch())
    assert changes["node2"] & {f"environment {STACK}", "torch"}
    for node in ("node0", "node1"):
        assert changes[node] <= {"ssh/config", "ssh/known_hosts", "/etc/hosts"}, "a new node changes the lists of nodes"
    rows = {row["node"]: row for row in site.orch(command="nodes")["nodes"]}
    assert {row["state"] for row in rows.values()} == {"verified"}
    cpuset = CPUSETS.split(",")[2]
    assert rows["node2"]["cores"] == 1 or cpuset != "0"


def processes_on_node2(site: Site) -> tuple[str, ...]:
    return site.cluster.processes("node2")


def test_failed_check_of_nodes_stops_provision_before_any_change(site: Site) -> None:
    site.write_inventory("node0", "node1", orch_root="/proc/orch")
    report = nodes_by_name(site.orch(code=1))
    assert "cannot write /proc/orch" in report["node0"]["problem"]
    assert [node["changed"] for node in report.values()] == [0, 0]


def test_provision_uses_user_port_and_jump_host_of_inventory(site: Site) -> None:
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
    site.write_inventory("node1", ansible_user="root")
    assert "/opt/orch/" in drift(site.orch("--dry-run", code=1))["node1"]


def test_changed_host_key_is_explained(site: Site, tmp_path: Path) -> None:
    """Provision while another controller on this machine has an open connection to the same address."""
    site.write_inventory("node0", "node1")
    assert nodes_by_name(site.orch("--dry-run", code=1))["node0"]["failed"] == 0
    known_hosts = site.folder / "wrong_known_hosts"
    node0, node1 = site.cluster.address("node0"), site.cluster.address("node1")
    lines = (site.cluster.state / "known_hosts").read_text().splitlines()
    known_hosts.write_text("\n".join(line.replace(node1, node0) for line in lines if line.startswith(node1)) + "\n")
    options = f"-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking=yes"
    second_controller = replace(site, folder=tmp_path)
    second_controller.write_inventory("node0", ansible_ssh_common_args=options)
    report = second_controller.orch(code=1)
    assert "host key has changed" in report["nodes"][0]["problem"]
