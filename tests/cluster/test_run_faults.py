"""Break runs, and check that orch names the cause within seconds and leaves no process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.cluster.lab import (
    TWO_NODES,
    find_pid,
    find_rank_pid,
    replaced_file,
    run_orch_json,
    run_processes,
    small_bert_qa,
    start_faulty,
    start_training,
    wait_for_no_processes,
)
from tests.cluster.sites import ROOT, SITE_PACKAGES, Site
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
FAILURE_SECONDS = 5.0  # in which a failed rank is reported
LOSS_SECONDS = 45.0  # in which a lost node is reported; its processes end within as many more


def test_failure_names_rank_and_cause(lab: Site) -> None:
    """Fill the shared memory of node1; tests/local has the other ways in which a rank may fail."""
    run = start_faulty(lab, "shm")
    report = run.wait_for_report(code=1)
    failure = report["failure"]
    assert (failure["rank"], failure["node"]) == (1, "node1")
    assert (failure["code"] or 0, failure["signal"]) == (0, "SIGBUS")
    assert "Bus error" in failure["text"]
    assert "shared memory full" in explanations(report)
    event_times = {event["event"]: event["time"] for event in run.events()}
    exit_time = next(event["time"] for event in run.events("exit") if event["rank"] == 1)
    assert event_times["failed"] - exit_time < FAILURE_SECONDS
    assert [node["left"] for node in report["nodes"].values()] == [[], []]
    assert run_processes(run.id) == {}
    assert "torch_" not in lab.cluster.exec("node1", ("ls", "/dev/shm"))


def explanations(report: dict[str, Any]) -> set[str]:
    """Return the names of known errors that explain the failure."""
    return {explanation["name"] for explanation in report["explanations"]}


def test_stall_names_rank_that_sleeps_forever(lab: Site) -> None:
    run = start_faulty(lab, "sleep", "--stall-timeout", "20")
    report = run.wait_for_report(code=1)
    assert report["problem"].startswith("no progress for 20 s: 1 of 2 ranks wait in collective")
    assert "behind: node1 rank 1" in report["problem"]
    (event,) = run.events("stalled")
    assert "faulty.py" in event["stands"]["1"], "the stack shows where the rank sleeps"
    assert "<lambda>" in (run.folder / "stacks/rank-1.txt").read_text()
    assert run_processes(run.id) == {}


@pytest.mark.parametrize("fault", ["kill", "cut", "pause"])
def test_run_ends_and_names_a_lost_node(lab: Site, fault: str) -> None:
    """Start each run on the nodes that the fault before has left, and one more after the last fault."""
    run = start_faulty(lab, script=("--steps", "100000"))
    run.wait_for_first_step()
    getattr(lab.cluster, fault)("node1")
    fault_time = time.monotonic()
    report = run.wait_for_report(code=1, seconds=LOSS_SECONDS + 20)
    assert time.monotonic() - fault_time < LOSS_SECONDS
    assert "node1 was lost" in report["problem"]
    assert report["nodes"]["node0"]["left"] == []
    lab.cluster.unpause("node1")
    wait_for_no_processes(run.id, LOSS_SECONDS + 20)
    lab.cluster.repair()
    if fault == "pause":
        assert start_faulty(lab).wait_for_report(code=0)["state"] == "done"


def test_failure_names_node_with_unplanned_torch(lab: Site) -> None:
    version = "__version__ = '2.12.0'\ndebug = False\ncuda = hip = rocm = xpu = git_version = None\n"
    with replaced_file(lab, "node1", f"{SITE_PACKAGES}/torch/version.py", version):
        run = start_faulty(lab)
        report = run.wait_for_report(code=1)
    assert (report["failure"]["rank"], report["failure"]["node"]) == (1, "node1")
    assert "another torch than planned" in explanations(report)
    assert run_processes(run.id) == {}


def test_used_port_is_explained(lab: Site) -> None:
    """Listen on the planned port of rank 0 before rank 0 does."""
    listener = (
        "import glob, json, os, socket, sys, time\n"
        "old_files = set(sys.argv[1:])\n"
        f"while not (new_files := set(glob.glob('{ROOT}/runs/*/env.json')) - old_files): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "port = int(json.load(open(new_files.pop()))['MASTER_PORT'])\n"
        "server = socket.create_server(('', port)); time.sleep(30)\n"
    )
    old_files = lab.cluster.exec("node0", ("sh", "-c", f"ls {ROOT}/runs/*/env.json || true")).split()
    node = lab.cluster.container("node0")
    command = ["docker", "exec", node, "python3", "-c", listener, *old_files]
    with subprocess.Popen(command) as process:
        report = start_faulty(lab).wait_for_report(code=1)
        lab.cluster.exec("node0", ("pkill", "-f", "create_server"))
        process.wait()
    assert "port taken" in explanations(report)
    assert report["failure"]["rank"] == 0


def test_wrong_clock_is_reported(lab: Site) -> None:
    """Set the clock of all programs on node1 a minute ahead."""
    clock_ahead = "import time; time.time = (lambda now: lambda: now() + 60)(time.time)\n"
    with replaced_file(lab, "node1", f"{SITE_PACKAGES}/ahead.pth", clock_ahead):
        report = start_faulty(lab).wait_for_report(code=0)
    texts = [entry["text"] for entry in report["timeline"]]
    assert any(re.match(r"node1: its clock is \+\d+ s off node0", text) for text in texts)


def test_full_disk_is_explained_and_run_resumes_on_a_larger_disk(lab: Site) -> None:
    """Fill the disk by a checkpoint; the checkpoint before it stays usable."""
    runs = f"{ROOT}/runs"
    lab.cluster.mount("node0", "-t", "tmpfs", "-o", "size=330m,mode=0777", "tmpfs", runs)
    try:
        run = start_training(lab, *small_bert_qa(save_steps=2), *TWO_NODES)
        report = run.wait_for_report(code=1, seconds=240)
        assert "disk full" in explanations(report)
        assert (report["failure"]["rank"], report["failure"]["node"]) == (0, "node0")
        assert run_processes(run.id) == {}
        lab.cluster.mount("node0", "-o", "remount,size=2g", runs)
        second_report = run_orch_json(lab, "resume", run.id, seconds=240)
        assert second_report["state"] == "done"
        assert "resume" in {decision["topic"] for decision in second_report["decisions"]}
    finally:
        lab.cluster.mount("node0", "--lazy", runs, program="umount")


def listed_state(lab: Site, run_id: str) -> str:
    """Return the state of a run as `orch runs` lists it."""
    rows = run_orch_json(lab, "runs", "--inventory", str(lab.inventory))["runs"]
    return next(str(row["state"]) for row in rows if row["id"] == run_id)


def test_processes_on_node1_end_when_node0_dies(lab: Site) -> None:
    run = start_faulty(lab, "none", "--detach", script=("--steps", "100000"))
    run.wait_for_report(code=0)
    run.wait_until(lambda: find_rank_pid(run.id, 1) is not None, "rank 1 on node1")
    lab.cluster.kill("node0")
    wait_for_no_processes(run.id, LOSS_SECONDS + 20)
    report = run_orch_json(lab, "stop", run.id, code=1)
    states = {node["node"]: node["state"] for node in report["nodes"]}
    assert states == {"node0": "unreachable", "node1": "clean"}
    assert report["seconds"] < 10
    lab.cluster.start("node0")
    # A restarted container is a different machine to orch, so the run counts as alive until its lease expires.
    wait_until(lambda: listed_state(lab, run.id) == "killed", "the end of the lease", seconds=180)
    assert start_faulty(lab).wait_for_report(code=0)["state"] == "done"


def test_run_without_supervisor_ends_as_killed(lab: Site) -> None:
    run = start_faulty(lab, script=("--steps", "100000"))
    run.wait_for_first_step()
    os.kill(find_pid(run.id, "node.py supervise "), signal.SIGKILL)
    report = run.wait_for_report(code=1, seconds=LOSS_SECONDS)
    assert report["state"] == "killed"
    wait_for_no_processes(run.id, LOSS_SECONDS)
