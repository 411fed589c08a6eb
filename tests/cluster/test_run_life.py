"""Detach from runs, find them again, stop and restart them on three nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import (
    TWO_NODES,
    find_pid,
    run_orch_json,
    run_processes,
    small_bert_qa,
    start_faulty,
    start_training,
)
from tests.cluster.sites import ORCH, Site

pytestmark = pytest.mark.cluster
ENDLESS = ("--steps", "100000")


def test_run_outlives_its_controller_and_is_found_by_another(lab: Site, tmp_path: Path) -> None:
    run = start_faulty(lab, script=("--steps", "700", "--lines", "1"))
    run.wait_for_first_step()
    run.process.kill()
    run.process.communicate()
    refusal = start_faulty(lab).wait_for_report(code=1)
    assert refusal["state"] == "refused"
    assert f"run {run.id} has cores" in refusal["problem"]
    second_controller = Site(cluster=lab.cluster, folder=tmp_path, variables={"ORCH_RUNS_DIR": "elsewhere"})
    second_controller.write_inventory("node0", "node1", "node2")
    second_controller.orch()  # records the facts of the nodes, and changes nothing there
    options = ("--inventory", str(second_controller.inventory))
    rows = {row["id"]: row for row in run_orch_json(second_controller, "runs", *options)["runs"]}
    assert rows[run.id]["state"] in ("running", "done")
    assert rows[run.id]["nodes"] == ["node0", "node1"]
    report = run_orch_json(second_controller, "attach", run.id, *options)
    assert (report["state"], report["run_id"]) == ("done", run.id)
    logs = subprocess.run(
        [*ORCH, "logs", run.id, *options, "--rank", "1", "--grep", "line 0$"],
        env=second_controller.environment,
        cwd=second_controller.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert logs.stdout.splitlines() == [f"[1 node1] step {step} line 0" for step in range(700)]


def timeline_texts(report: dict[str, Any]) -> list[str]:
    return [entry["text"] for entry in report["timeline"]]


def test_run_continues_when_connections_are_lost(lab: Site) -> None:
    """Kill the connections of the controller to node0, of the supervisor to the agent of node1, and of hydra to node1.

    hydra needs its ssh only to start a proxy, which has its own connection to hydra.
    """
    run = start_faulty(lab, script=("--steps", "500"))
    run.wait_for_first_step()
    for connection in (("ssh", "hydra_"), ("ssh ", "node.py agent ")):
        os.kill(find_pid(run.id, *connection), signal.SIGKILL)
    kill_sessions = "pkill -KILL -f '^sshd: vagrant@notty'"
    lab.cluster.exec("node0", ("sh", "-c", kill_sessions))
    report = run.wait_for_report(code=0)
    assert report["state"] == "done"
    message = "node1: the connection to its agent ended; connecting again"
    assert any(message in text for text in timeline_texts(report))
    assert run_processes(run.id) == {}


@pytest.mark.parametrize("phase", ["start", "checkpoint"])
def test_stop_leaves_no_process(lab: Site, phase: str) -> None:
    """Stop a run in each phase; after a stop while saving a checkpoint it can be resumed."""
    if phase == "start":
        run = start_faulty(lab, script=ENDLESS)
    else:
        run = start_training(lab, *small_bert_qa(max_steps=300), *TWO_NODES)
        run.wait_for_event("progress", phase="save", step=2)  # the checkpoint of step 1 is complete
    stop_report = run_orch_json(lab, "stop", run.id)
    assert stop_report["seconds"] < 10
    assert {node["node"]: node["state"] for node in stop_report["nodes"]} == {"node0": "clean", "node1": "clean"}
    assert run_processes(run.id) == {}
    out, _ = run.process.communicate(timeout=30)
    assert run.process.returncode == 130, out
    assert json.loads(out)["state"] == "stopped"
    if phase == "checkpoint":
        resumed_run = replace(run, process=lab.spawn("resume", run.id, "--json", "--show", "none"))
        resumed_run.wait_for_event("progress", phase="train")
        resumed_run.wait_for_event("launched", attempt=2)
        resumed_run.process.send_signal(signal.SIGINT)
        assert resumed_run.wait_for_report(code=130)["state"] == "stopped"
        assert run_processes(resumed_run.id) == {}


def test_two_simultaneous_stops_succeed(lab: Site) -> None:
    run = start_faulty(lab, script=ENDLESS)
    run.wait_for_first_step()
    command = [*ORCH, "stop", run.id, "--json"]
    stops = [subprocess.Popen(command, env=lab.environment, cwd=lab.folder, stdout=subprocess.PIPE) for _ in range(2)]
    for process in stops:
        process.communicate(timeout=30)
    assert [process.returncode for process in stops] == [0, 0]
    assert run_processes(run.id) == {}
    run.process.communicate(timeout=30)


def test_run_restarts_from_checkpoint_with_a_spare_node(lab: Site) -> None:
    run = start_training(lab, *small_bert_qa(max_steps=12), *TWO_NODES, "--max-restarts", "1", "--spare-nodes", "1")
    run.wait_for_event("progress", 3, phase="save")
    lab.cluster.kill("node1")
    report = run.wait_for_report(code=0, seconds=300)
    assert (report["state"], report["attempts"]) == ("done", 2)
    assert "node2 replaces node1" in timeline_texts(report)
    assert "started 2 ranks on node0, node2 (attempt 2)" in timeline_texts(report)
    assert steps_with_loss(run.folder) == list(range(1, 13))


def steps_with_loss(folder: Path) -> list[int]:
    """Return the steps of a run for which its metrics have a loss."""
    lines = (folder / "output/metrics.jsonl").read_text().splitlines()
    return sorted({json.loads(line)["step"] for line in lines if "loss" in json.loads(line)})


def test_clean_finds_and_ends_leftover_process(lab: Site) -> None:
    """Start a process that belongs to a stopped run, like a rank whose supervisor and agents have died."""
    run = start_faulty(lab, script=ENDLESS)
    run.wait_for_first_step()
    run_dir = json.loads((run.folder / "plan.json").read_text())["run_dir"]
    command = ("env", f"ORCH_RUN_DIR={run_dir}", "python3", "-c", "import time; time.sleep(600)")
    run_orch_json(lab, "stop", run.id)
    run.process.communicate(timeout=30)
    node = lab.cluster.container("node1")
    with subprocess.Popen(["docker", "exec", "--user", "vagrant", node, *command]):
        deadline = time.monotonic() + 10
        while not run_processes(run.id):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        options = ("--inventory", str(lab.inventory))
        report = run_orch_json(lab, "clean", "--dry-run", *options, code=1)
        assert {node["node"]: len(node["left"]) for node in report["nodes"]}["node1"] == 1
        assert run_processes(run.id)
        run_orch_json(lab, "clean", *options)
    assert run_processes(run.id) == {}
