"""Train the runs of an array on the hosts of an inventory: they wait for free nodes, and start in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import expect_exit, read_outcome, start_orch, wait_for_exit, write_script
from tests.local.workspaces import Workspace, make_hosts
from tests.support.waiting import wait_until

SCRIPT = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seconds", type=float, default=2.0)
arguments = parser.parse_args()
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
print("LR", arguments.lr, "on", os.uname().nodename, flush=True)
open("begun", "w").close()
time.sleep(arguments.seconds)
"""
OPTIONS = ("--ppn", "1", "--backend", "gloo")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("sweep")
    with make_hosts(folder, *OPTIONS) as workspace:
        write_script(folder, SCRIPT, "sweep.py")
        yield workspace


def runs_of(workspace: Workspace) -> dict[str, dict[str, object]]:
    """Return the recorded runs by their ids."""
    listed = expect_exit(workspace.orch("runs", "--json"))
    return {run["id"]: run for run in json.loads(listed.stdout)["runs"]}


def test_runs_of_an_array_use_all_nodes_in_their_order(two_hosts: Workspace) -> None:
    options = (*two_hosts.options, "--array", "lr=0.1,0.2,0.3", "--json", "--", "--lr", "{lr}")
    process = expect_exit(two_hosts.orch("train", "sweep.py", *options))
    reports = json.loads(process.stdout)["runs"]
    assert [report["state"] for report in reports] == ["done"] * 3
    array = reports[0]["run_id"].removesuffix("-0")
    folders = [two_hosts.folder / "runs" / f"{array}-{number}" for number in range(3)]
    records = [json.loads((folder / "plan.json").read_text()) for folder in folders]
    assert {record["node0"]["node"] for record in records} == {"node0", "node1"}
    outcomes = [read_outcome(folder) for folder in folders]
    started = [outcome["started"] for outcome in outcomes]
    assert started == sorted(started)
    assert started[1] < outcomes[0]["ended"], "the first two runs train side by side"
    assert "LR 0.3 on" in expect_exit(two_hosts.orch("logs", f"{array}-2")).stdout
    assert "lr=0.3" in expect_exit(two_hosts.orch("runs", "compare", array)).stdout


def test_array_survives_its_command_and_is_stopped_as_a_whole(two_hosts: Workspace) -> None:
    options = (*two_hosts.options, "--array", "lr=1,2,3", "--detach", "--json", "--", "--seconds", "600")
    process = expect_exit(two_hosts.orch("train", "sweep.py", *options))
    ids = json.loads(process.stdout)["runs"]
    array = ids[0].removesuffix("-0")
    wait_until(lambda: [runs_of(two_hosts)[name]["state"] for name in ids] == ["running", "running", "queued"], "start")
    assert "waits for 1 free node" in str(runs_of(two_hosts)[ids[2]]["progress"])
    refused = two_hosts.orch("fetch", ids[2])
    assert refused.returncode == 2
    assert "has not started" in refused.stderr
    for name in ids[:2]:
        expect_exit(two_hosts.orch("stop", name))
    assert f"Runs of {array} wait or run already" in expect_exit(two_hosts.orch("resume", array), 1).stderr
    assert {runs_of(two_hosts)[name]["state"] for name in ids[:2]} == {"stopped"}, "nothing has changed"
    stopped = expect_exit(two_hosts.orch("stop", array))
    assert stopped.stdout.count("Stopped run") == 1, stopped.stdout
    assert stopped.stdout.endswith(f"resume: orch resume {array}\n")
    assert "had already ended" in expect_exit(two_hosts.orch("stop", array)).stdout
    assert {runs_of(two_hosts)[name]["state"] for name in ids} == {"stopped"}


def test_resumed_run_of_an_array_keeps_the_events_of_its_last_node(two_hosts: Workspace) -> None:
    options = (*two_hosts.options, "--array", "seconds=1,600", "--detach", "--json", "--", "--seconds", "{seconds}")
    ids = json.loads(expect_exit(two_hosts.orch("train", "sweep.py", *options)).stdout)["runs"]
    wait_until(lambda: [runs_of(two_hosts)[name]["state"] for name in ids] == ["done", "running"], "a free node")
    expect_exit(two_hosts.orch("stop", ids[1]))
    assert runs_of(two_hosts)[ids[1]]["nodes"] == ["node1"]
    expect_exit(two_hosts.orch("resume", ids[1].removesuffix("-1"), "--detach"))
    begun = two_hosts.lab.hosts[0].folder / "root/runs" / ids[1] / "ranks/rank-0.log"
    wait_until(begun.exists, "the second attempt on node0")
    expect_exit(two_hosts.orch("stop", ids[1]))
    lines = (two_hosts.folder / "runs" / ids[1] / "events.jsonl").read_text().splitlines()
    launched = [event for event in map(json.loads, lines) if event["event"] == "launched"]
    assert [(event["attempt"], event["nodes"]) for event in launched] == [(1, ["node1"]), (2, ["node0"])]


def test_run_whose_node_is_lost_starts_again_on_another(two_hosts: Workspace) -> None:
    options = (*two_hosts.options, "--array", "lr=1,2,3", "--", "--lr", "{lr}", "--seconds", "20")
    with start_orch(two_hosts.folder, "train", "sweep.py", *options) as process:

        def begun() -> list[Path]:
            folders = [host.folder / "root/runs" for host in two_hosts.lab.hosts]
            return [path for folder in folders for path in folder.glob("*/project/begun")]

        before = len(begun())
        wait_until(lambda: len(begun()) >= before + 2, "two runs train")
        two_hosts.lab.disconnect(two_hosts.lab.hosts[1])
        ended = wait_for_exit(process, seconds=400)
    assert ended.stdout == ""
    assert ended.stderr.count(": done") == 6, ended.stderr  # each when it ends, and in the list of all runs
    assert ended.stderr.count("started on node0") == 3, ended.stderr
