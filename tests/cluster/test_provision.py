"""`orch provision` on bare nodes, on drifted, dying, interrupted and growing clusters."""

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
from tests.cluster.lab import ON_TWO, small
from tests.cluster.sites import LOCK, ROOT, SITE, TOKEN, Site, drift, nodes_of, on, wait_for
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
FILES = {"env.json", "train/node.py", "train/stranger.py"}


def test_bare_nodes_become_a_verified_cluster(first: tuple[Site, dict[str, Any]]) -> None:
    site, report = first
    assert report["state"] == "done"
    for node, other in (("node0", "node1"), ("node1", "node0")):
        python = f"{ROOT}/stacks/current/bin/python"
        assert on(site, node, python, "-c", "import torch; print(torch.__version__)").startswith("2")
        assert json.loads(on(site, node, "cat", f"{ROOT}/env.json")) == {"LAB": "one"}
        config = ("ssh", "-F", f"{ROOT}/ssh/config", other, "hostname")
        assert on(site, node, *config).strip() == other
        assert on(site, node, "getent", "hosts", other).split()[0] == site.cluster.address(other)
        assert on(site, node, "ls", f"{ROOT}/train/node.py")


def test_the_facts_are_recorded(site: Site) -> None:
    rows = {row["node"]: row for row in site.orch(command="nodes")["nodes"]}
    assert {row["state"] for row in rows.values()} == {"verified"}
    assert {row["interface"] for row in rows.values()} == {"eth0"}
    assert len({row["fingerprint"] for row in rows.values()}) == 1


def test_training_over_ssh_on_ccl_in_the_precision_of_the_nodes(site: Site) -> None:
    """The main job on two nodes; its metrics come to the controller."""
    run = site.train(*small(), *ON_TWO)
    precision = "bf16" if local_facts(sys.executable).bf16 else "fp32"
    assert (run["state"], run["backend"], run["precision"]) == ("done", "ccl", precision)
    assert run["result"]["world_size"] == 2
    folder = Path(run["folder"])
    steps = (folder / "output" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[-1])["step"] == 6
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {e["node"] for e in events if e["event"] == "joined"} == {"node0", "node1"}
    ranks = folder / "ranks"
    assert "note: " in (ranks / "rank-0.log").read_text()
    assert (ranks / "rank-1.metrics.jsonl").stat().st_size
    assert processes_of(site, run["run_id"]) == []


def test_a_failure_on_another_node_is_named_and_nothing_is_left(site: Site) -> None:
    script = site.folder / "own script.py"
    script.write_text(
        "import os, time, torch.distributed as dist\n"
        "assert os.environ['HF_TOKEN'] and os.environ['LAB'] == 'one'\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 1: raise ValueError('boom')\n"
        "time.sleep(300)\n"
    )
    run = site.train(str(script), "--nodes", "2", "--ppn", "1", code=1)
    assert (run["failure"]["rank"], run["failure"]["node"]) == (1, "node1")
    assert "ValueError: boom" in run["failure"]["text"]
    assert processes_of(site, run["run_id"]) == []


def processes_of(site: Site, run_id: str) -> list[str]:
    """What mentions the run on any node: they are containers, so /proc here shows them all."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if run_id.encode() in text:
            found.append(text.decode())
    return found


def test_a_secret_reaches_the_nodes_and_nothing_else(site: Site) -> None:
    assert json.loads(on(site, "node0", "cat", f"{ROOT}/secrets.json")) == {"HF_TOKEN": TOKEN}
    assert on(site, "node0", "stat", "-c", "%a", f"{ROOT}/secrets.json").strip() == "600"
    kept = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]
    search = ("grep", "-rl", "--exclude-dir=stacks", TOKEN, "/home/vagrant", "/tmp", "/var/log")
    found = site.cluster.exec("node0", search)
    assert found.split() == [f"{ROOT}/secrets.json"]


def watched(process: subprocess.Popen[str]) -> list[Path]:
    """Until it ends, the processes with the secret in their arguments."""
    seen = []
    while process.poll() is None:
        seen += [path for path in Path("/proc").glob("[0-9]*/cmdline") if holds_token(path)]
        time.sleep(0.01)  # no program that is given arguments lives for less
    return seen


def holds_token(path: Path) -> bool:
    """Also the nodes' processes: they are containers of this machine."""
    try:
        return TOKEN.encode() in path.read_bytes()
    except OSError:
        return False


def test_the_second_run_changes_nothing_and_is_quick(first: tuple[Site, dict[str, Any]]) -> None:
    site, report = first
    for _ in range(3):  # other work on the machine only ever lengthens
        again = site.orch()
        assert [node["changed"] for node in nodes_of(again).values()] == [0, 0]
        if again["seconds"] < report["seconds"] / 2:
            return
    pytest.fail(f"{again['seconds']} s again, of {report['seconds']} at first")


def test_drift_is_told_and_mended_and_nothing_else_is_touched(site: Site) -> None:
    own = "data/mine.txt"
    on(site, "node1", "sh", "-c", f"echo x >> {SITE}/transformers/__init__.py")
    on(site, "node1", "rm", f"{ROOT}/train/node.py")
    on(site, "node1", "touch", f"{ROOT}/train/stranger.py", f"{ROOT}/{own}")
    on(site, "node1", "sh", "-c", f"echo '{{}}' > {ROOT}/env.json")
    on(site, "node1", "rm", "-r", f"{SITE}/accelerate", f"{ROOT}/stacks/current/mpi/mpich")
    expected = {"transformers", "accelerate", "mpich"} | FILES
    assert drift(site.orch("--check", code=1)) == {"node0": set(), "node1": expected}
    assert drift(site.orch()) == {"node0": set(), "node1": expected}, "a check mends nothing"
    assert on(site, "node1", "ls", f"{ROOT}/{own}")


def test_a_half_installed_environment_is_mended(site: Site) -> None:
    """And of what drifted in the test before nothing is left. No process has shown the secret."""
    on(site, "node1", "sh", "-c", f"rm {ROOT}/stacks/current/bin/python; rm -r {SITE}/torch/[a-m]*")
    environment = f"environment {ROOT}/stacks/current"
    process = site.start("--json")
    seen = watched(process)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert drift(report)["node0"] == set()
    assert environment in drift(report)["node1"]
    assert not drift(report)["node1"] & FILES
    assert not seen


def test_sync_alone(site: Site) -> None:
    on(site, "node0", "rm", f"{ROOT}/train/node.py")
    assert drift(site.orch(command="sync")) == {"node0": {"train/node.py"}, "node1": set()}


def test_a_dead_node_does_not_keep_the_others(site: Site) -> None:
    site.describe("node0", "node1", "node2")
    site.cluster.kill("node2")
    on(site, "node0", "rm", f"{ROOT}/train/node.py")
    began = time.monotonic()
    report = nodes_of(site.orch(code=1))
    assert time.monotonic() - began < 90
    assert [report[name]["failed"] for name in ("node0", "node1", "node2")] == [0, 0, 1]
    assert "does not respond" in report["node2"]["problem"]
    assert on(site, "node0", "ls", f"{ROOT}/train/node.py")


def test_a_frozen_node_is_noticed(site: Site) -> None:
    site.cluster.pause("node2")
    began = time.monotonic()
    report = nodes_of(site.orch(code=1))
    assert time.monotonic() - began < 90
    assert report["node2"]["failed"]
    assert report["node0"]["failed"] == report["node1"]["failed"] == 0


def test_an_interrupted_run_is_stopped_and_a_second_one_waits(site: Site) -> None:
    process = site.start()
    wait_for(process, "stack: Compare the environment")
    refused = site.orch(code=1)["stderr"]
    assert f"process {process.pid}" in refused
    time.sleep(3)  # somewhere in the middle of the wheels
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for node in site.cluster.nodes:
        assert "No such file" in on(site, node, "sh", "-c", f"ls {LOCK} 2>&1; true")


def test_a_node_killed_in_mid_install_is_finished_later_by_the_same_command(site: Site) -> None:
    # The node's part of the interrupted run may still be at work, or be done by now.
    site.cluster.exec("node2", ("sh", "-c", "pkill -KILL -u vagrant; true"))
    until(lambda: not running(site), "the end of what was interrupted")
    on(site, "node2", "rm", "-rf", f"{ROOT}/stacks")
    on(site, "node0", "rm", f"{ROOT}/train/node.py")
    process = site.start("--json")
    until(lambda: any("uv" in line and " install " in line for line in running(site)), "uv at work")
    site.cluster.kill("node2")
    report = nodes_of(json.loads(process.communicate(timeout=120)[0]))
    assert process.returncode == 1
    assert [report[node]["failed"] for node in ("node0", "node1", "node2")] == [0, 0, 1]
    assert report["node2"]["problem"].startswith("Install the stack")
    assert on(site, "node0", "ls", f"{ROOT}/train/node.py")
    site.cluster.start("node2")
    # uv unpacks all wheels before it puts the first into place.
    assert drift(site.orch())["node2"] & {f"environment {ROOT}/stacks/current", "torch"}
    rows = {row["node"]: row for row in site.orch(command="nodes")["nodes"]}
    assert {row["state"] for row in rows.values()} == {"verified"}
    pinned = CPUSETS.split(",")[2]
    assert rows["node2"]["cores"] == 1 or pinned != "0"


def running(site: Site) -> tuple[str, ...]:
    return site.cluster.processes("node2")


def test_an_added_node_changed_nothing_of_the_others_but_their_list_of_nodes(site: Site) -> None:
    site.describe("node0", "node1")
    allowed = {"ssh/config", "ssh/known_hosts", "/etc/hosts"}
    assert drift(site.orch())["node0"] <= allowed
    site.describe("node0", "node1", "node2")
    found = drift(site.orch())
    assert found["node0"] <= allowed
    assert found["node1"] <= allowed


def test_a_node_that_does_not_pass_stops_all_before_any_change(site: Site) -> None:
    site.describe("node0", "node1", orch_root="/proc/orch")
    report = nodes_of(site.orch(code=1))
    assert "cannot write /proc/orch" in report["node0"]["problem"]
    assert [node["changed"] for node in report.values()] == [0, 0]


def test_another_user_another_port_and_a_jump_host(site: Site) -> None:
    site.cluster.exec("node1", ("/usr/sbin/sshd", "-p", "2222"))
    known = site.folder / "known_hosts"
    lines = (site.cluster.state / "known_hosts").read_text().splitlines()
    address = site.cluster.address("node1")
    ported = [line.replace(address, f"[{address}]:2222", 1) for line in lines]
    known.write_text("\n".join(lines + ported) + "\n")
    options = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    jump = f"ssh -F {site.cluster.ssh_config} -W %h:%p node0"
    arguments = f"{options} -o ProxyCommand='{jump}'"
    site.describe("node1", ansible_port=2222, ansible_ssh_common_args=arguments)
    assert site.orch("--check", code=1)["nodes"][0]["failed"] == 0
    site.describe("node1", ansible_user="root")
    assert "/opt/orch/" in drift(site.orch("--check", code=1))["node1"]


def test_a_changed_host_key_stops_with_an_explanation(site: Site, tmp_path: Path) -> None:
    """Also while another controller has a connection open from here to that address."""
    site.describe("node0", "node1")
    assert nodes_of(site.orch("--check", code=1))["node0"]["failed"] == 0
    known = site.folder / "wrong_known_hosts"
    swap = site.cluster.address("node1"), site.cluster.address("node0")
    lines = (site.cluster.state / "known_hosts").read_text().splitlines()
    known.write_text("\n".join(x.replace(*swap) for x in lines if x.startswith(swap[0])) + "\n")
    options = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes"
    other = replace(site, folder=tmp_path)
    other.describe("node0", ansible_ssh_common_args=options)
    report = other.orch(code=1)
    assert "host key has changed" in report["nodes"][0]["problem"]
