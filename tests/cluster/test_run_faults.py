"""Break runs, and check that orch names the cause within seconds and leaves no process."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.lab import (
    TWO_NODES,
    replaced_file,
    run_orch_json,
    run_processes,
    small_bert_qa,
    start_faulty,
    start_training,
    wait_for_no_processes,
)
from tests.cluster.sites import ROOT, SITE_PACKAGES, Site

pytestmark = pytest.mark.cluster
FAILURE_SECONDS = 5.0  # in which a failed rank is reported
LOSS_SECONDS = 45.0  # in which a lost node is reported; its processes end within as many more


def test_failure_names_rank_and_cause(site: Site) -> None:
    """Fill the shared memory of node1; tests/local has the other ways in which a rank may fail."""
    run = start_faulty(site, "shm")
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
    assert "torch_" not in site.cluster.exec("node1", ("ls", "/dev/shm"))


def explanations(report: dict[str, Any]) -> set[str]:
    """Return the names of known errors that explain the failure."""
    return {explanation["name"] for explanation in report["explanations"]}


def test_run_ends_and_names_a_frozen_node(site: Site) -> None:
    """Freeze node1, whose kernel still accepts connections, and let it continue after the run has ended."""
    run = start_faulty(site, script=("--steps", "100000"))
    run.wait_for_first_step()
    site.cluster.pause("node1")
    fault_time = time.monotonic()
    report = run.wait_for_report(code=1, seconds=LOSS_SECONDS + 20)
    assert time.monotonic() - fault_time < LOSS_SECONDS
    assert "node1 was lost" in report["problem"]
    assert report["nodes"]["node0"]["left"] == []
    site.cluster.unpause("node1")
    wait_for_no_processes(run.id, LOSS_SECONDS + 20)


def test_failure_names_node_with_unplanned_torch(site: Site) -> None:
    version = "__version__ = '2.12.0'\ndebug = False\ncuda = hip = rocm = xpu = git_version = None\n"
    with replaced_file(site, "node1", f"{SITE_PACKAGES}/torch/version.py", version):
        run = start_faulty(site)
        report = run.wait_for_report(code=1)
    assert (report["failure"]["rank"], report["failure"]["node"]) == (1, "node1")
    assert "another torch than planned" in explanations(report)
    assert run_processes(run.id) == {}


def test_used_port_is_explained(site: Site) -> None:
    """Listen on the planned port of rank 0 before rank 0 does."""
    listener = (
        "import glob, json, os, socket, sys, time\n"
        "old_files = set(sys.argv[1:])\n"
        f"while not (new_files := set(glob.glob('{ROOT}/runs/*/env.json')) - old_files): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "port = int(json.load(open(new_files.pop()))['MASTER_PORT'])\n"
        "server = socket.create_server(('', port)); time.sleep(30)\n"
    )
    old_files = site.cluster.exec("node0", ("sh", "-c", f"ls {ROOT}/runs/*/env.json || true")).split()
    node = site.cluster.container("node0")
    command = ["docker", "exec", node, "python3", "-c", listener, *old_files]
    with subprocess.Popen(command) as process:
        report = start_faulty(site).wait_for_report(code=1)
        site.cluster.exec("node0", ("pkill", "-f", "create_server"))
        process.wait()
    assert "port taken" in explanations(report)
    assert report["failure"]["rank"] == 0


def test_full_disk_is_explained_and_run_resumes_on_a_larger_disk(site: Site) -> None:
    """Fill the disk by a checkpoint; the run resumes from the checkpoint before it, and is stopped during the next."""
    runs = f"{ROOT}/runs"
    site.cluster.mount("node0", "-t", "tmpfs", "-o", "size=330m,mode=0777", "tmpfs", runs)
    try:
        run = start_training(site, *small_bert_qa(max_steps=300, save_steps=2), *TWO_NODES)
        report = run.wait_for_report(code=1, seconds=240)
        assert "disk full" in explanations(report)
        assert (report["failure"]["rank"], report["failure"]["node"]) == (0, "node0")
        assert run_processes(run.id) == {}
        site.cluster.mount("node0", "-o", "remount,size=2g", runs)
        saved = len(run.events("progress"))
        run = replace(run, process=site.spawn("resume", run.id, "--json", "--show", "none"))
        run.wait_for_event("launched", attempt=2)
        run.wait_until(lambda: is_saving(run.events("progress")[saved:]), "a further checkpoint")
        stop_report = run_orch_json(site, "stop", run.id)
        assert stop_report["seconds"] < 10
        assert {node["node"]: node["state"] for node in stop_report["nodes"]} == {"node0": "clean", "node1": "clean"}
        report = run.wait_for_report(code=130)
        assert report["state"] == "stopped"
        assert "resume" in {decision["topic"] for decision in report["decisions"]}
        assert run_processes(run.id) == {}
    finally:
        site.cluster.mount("node0", "--lazy", runs, program="umount")


def is_saving(events: list[dict[str, Any]]) -> bool:
    return any(event.get("phase") == "save" for event in events)


def test_processes_on_node1_end_when_node0_dies(site: Site) -> None:
    run = start_faulty(site, script=("--steps", "100000"))
    run.wait_for_first_step()
    run.process.kill()
    run.process.communicate()
    site.cluster.kill("node0")
    wait_for_no_processes(run.id, LOSS_SECONDS + 20)
    report = run_orch_json(site, "stop", run.id, code=1)
    states = {node["node"]: node["state"] for node in report["nodes"]}
    assert states == {"node0": "unreachable", "node1": "clean"}
    assert report["seconds"] < 10
    site.cluster.start("node0")
    # A restarted container is a different machine to orch, so the run counts as alive until its lease expires.
    deadline = time.monotonic() + 180
    while listed_state(site, run.id) != "killed":
        assert time.monotonic() < deadline, "the lease has not expired"
        time.sleep(10)  # a list takes a CPU second


def listed_state(site: Site, run_id: str) -> str:
    """Return the state of a run as `orch runs` lists it."""
    rows = run_orch_json(site, "runs", "--inventory", str(site.inventory))["runs"]
    return next(str(row["state"]) for row in rows if row["id"] == run_id)
