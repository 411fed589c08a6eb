"""Train on two nodes, lose controllers, connections and nodes, stop runs, and end leftover processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.load.clusters import local_facts
from tests.cluster import lab
from tests.cluster.sites import SITE_PACKAGES, Site, run_on
from tests.conftest import ORCH
from tests.local.recipes import QA_SETTINGS
from tests.local.runs import settings_options

pytestmark = pytest.mark.cluster
LOSS_SECONDS = 45.0  # in which a lost node is reported; its processes end within as many more
# Settings of a bert-qa run that trains for seconds.
SMALL_SETTINGS = {
    **QA_SETTINGS,
    "max_steps": 8,
    "save_steps": 1,
    "max_eval_samples": 8,
    "max_seq_length": 64,
    "doc_stride": 16,
    "per_device_train_batch_size": 2,
}
RECONNECTING = "node1: the connection to its agent ended; connecting again"
CLOCK_AHEAD = "import time; time.time = (lambda now: lambda: now() + 60)(time.time)"


def test_simultaneous_stops_end_a_starting_run_and_clean_ends_its_leftover_process(site: Site) -> None:
    """Start a process that belongs to a stopped run, like a rank whose supervisor and agents have died."""
    run = lab.start_faulty(site, "--steps", "100000")
    command = [*ORCH, "stop", run.id, "--json"]
    stops = [subprocess.Popen(command, env=site.environment, cwd=site.folder, stdout=subprocess.PIPE) for _ in range(2)]
    for process in stops:
        report = json.loads(process.communicate(timeout=30)[0])
        assert {node["node"]: node["state"] for node in report["nodes"]} == {"node0": "clean", "node1": "clean"}
        assert report["seconds"] < 10
    assert [process.returncode for process in stops] == [0, 0]
    assert lab.run_processes(run.id) == {}
    assert run.wait_for_report(code=130, seconds=30)["state"] == "stopped"
    run_dir = json.loads((run.folder / "plan.json").read_text())["run_dir"]
    leftover = ("env", f"ORCH_RUN_DIR={run_dir}", "python3", "-c", "import time; time.sleep(600)")
    with subprocess.Popen(["docker", "exec", "--user", "vagrant", site.cluster.container("node1"), *leftover]):
        deadline = time.monotonic() + 10
        while not lab.run_processes(run.id):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        options = ("--inventory", str(site.inventory))
        report = lab.run_orch_json(site, "clean", "--dry-run", *options, code=1)
        assert {node["node"]: len(node["left"]) for node in report["nodes"]}["node1"] == 1
        assert lab.run_processes(run.id)
        lab.run_orch_json(site, "clean", *options)
    assert lab.run_processes(run.id) == {}


def test_training_restarts_from_checkpoint_with_a_spare_node_and_is_fetched(site: Site) -> None:
    """Train bert-qa on two nodes, and lose node1 after a few checkpoints."""
    options = (*lab.TWO_NODES, "--max-restarts", "1", "--spare-nodes", "1")
    run = lab.start_training(site, "bert-qa", *settings_options(**SMALL_SETTINGS), *options)
    run.wait_for_event("progress", 3, phase="save")
    site.cluster.kill("node1")
    report = run.wait_for_report(code=0, seconds=300)
    assert (report["state"], report["attempts"]) == ("done", 2)
    precision = "bf16" if local_facts(sys.executable).bf16 else "fp32"
    assert (report["backend"], report["precision"], report["result"]["world_size"]) == ("ccl", precision, 2)
    assert "node2 replaces node1" in timeline_texts(report)
    assert "started 2 ranks on node0, node2 (attempt 2)" in timeline_texts(report)
    assert steps_with_loss(run.folder) == list(range(1, 9))
    assert {event["node"] for event in run.events("joined")} == set(site.cluster.nodes)
    assert "note: " in (run.folder / "ranks/rank-0.log").read_text()
    assert (run.folder / "ranks/node2/rank-1.metrics.jsonl").stat().st_size
    first_fetch = lab.run_orch_json(site, "fetch", run.id, "--only", "checkpoint-*", code=1)
    assert "checkpoint-8/model.safetensors" in first_fetch["brought"]
    assert [omission["path"] for omission in first_fetch["omitted"]] == ["node1/"]
    site.cluster.start("node1")
    second_fetch = lab.run_orch_json(site, "fetch", run.id, "--only", "checkpoint-*")
    assert second_fetch["brought"]
    assert all(path.startswith("node1/") for path in second_fetch["brought"])
    assert lab.run_processes(run.id) == {}


def timeline_texts(report: dict[str, Any]) -> list[str]:
    return [entry["text"] for entry in report["timeline"]]


def steps_with_loss(folder: Path) -> list[int]:
    """Return the steps of a run for which its metrics have a loss."""
    lines = (folder / "output/metrics.jsonl").read_text().splitlines()
    return sorted({json.loads(line)["step"] for line in lines if "loss" in json.loads(line)})


def test_run_ends_and_names_a_frozen_node(site: Site) -> None:
    """Freeze node1, whose kernel still accepts connections, and let it continue after the run has ended."""
    run = lab.start_faulty(site, "--steps", "100000")
    run.wait_for_first_step()
    site.cluster.pause("node1")
    fault_time = time.monotonic()
    report = run.wait_for_report(code=1, seconds=LOSS_SECONDS + 20)
    assert time.monotonic() - fault_time < LOSS_SECONDS
    assert "node1 was lost" in report["problem"]
    assert report["nodes"]["node0"]["left"] == []
    site.cluster.unpause("node1")
    lab.wait_for_no_processes(run.id, LOSS_SECONDS + 20)


def test_processes_on_node1_end_when_node0_dies(site: Site) -> None:
    run = lab.start_faulty(site, "--steps", "100000")
    run.wait_for_first_step()
    run.process.kill()
    run.process.communicate()
    site.cluster.kill("node0")
    lab.wait_for_no_processes(run.id, LOSS_SECONDS + 20)
    report = lab.run_orch_json(site, "stop", run.id, code=1)
    assert {node["node"]: node["state"] for node in report["nodes"]} == {"node0": "unreachable", "node1": "clean"}
    assert report["seconds"] < 10


def test_run_outlives_its_controller_and_connection_and_another_controller_finds_it(site: Site, tmp_path: Path) -> None:
    """Kill the connections of the controller to node0, of the supervisor to the agent of node1, and of hydra to node1.

    hydra needs its ssh only to start a proxy, which has its own connection to hydra. The clock of node1 is a minute
    ahead. When the controller has received the event of that, kill it as well.
    """
    path = f"{SITE_PACKAGES}/ahead.pth"
    run_on(site, "node1", "sh", "-c", 'echo "$1" >"$2"', "sh", CLOCK_AHEAD, path)
    try:
        run = lab.start_faulty(site, "--steps", "300", "--seconds", "0.1", "--lines", "1")
        run.wait_for_first_step()
    finally:
        run_on(site, "node1", "rm", path)
    site.cluster.exec("node0", ("pkill", "-KILL", "-f", "^sshd: vagrant@notty"))
    for program, argument in (("ssh", "hydra_"), ("ssh ", "node.py agent ")):
        (pid,) = (pid for pid, line in lab.run_processes(run.id).items() if program in line and argument in line)
        os.kill(pid, signal.SIGKILL)
    run.wait_for_event("node", text=RECONNECTING)  # the controller has connected to node0 again, too
    run.process.kill()
    run.process.communicate()
    second_controller = Site(cluster=site.cluster, folder=tmp_path, variables={"ORCH_RUNS_DIR": "elsewhere"})
    second_controller.write_inventory("node0", "node1")
    second_controller.orch()  # records their facts, changes only their keys, and leaves out node2 for all later tests
    options = ("--inventory", str(second_controller.inventory))
    rows = {row["id"]: row for row in lab.run_orch_json(second_controller, "runs", *options)["runs"]}
    assert rows[run.id]["state"] in ("running", "done")
    assert rows[run.id]["nodes"] == ["node0", "node1"]
    report = lab.run_orch_json(second_controller, "attach", run.id, *options)
    assert (report["state"], report["run_id"]) == ("done", run.id)
    texts = timeline_texts(report)
    assert any(RECONNECTING in text for text in texts)
    assert any(re.match(r"node1: the clock is about \+\d+ s off node0", text) for text in texts)
    logs = second_controller.run("logs", run.id, *options, "--rank", "1", "--grep", "line 0$", seconds=60)
    assert logs.stdout.splitlines() == [f"[1 node1] step {step} line 0" for step in range(300)]
    assert lab.run_processes(run.id) == {}
