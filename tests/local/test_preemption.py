"""Preempt runs by a signal to the supervisor or to one rank, so that all ranks write a checkpoint, and stop others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from orch_node.preemption import calls_in
from orch_node.protocol.environment import DEFAULT_SIGNALS, PREEMPT_SIGNAL

from tests.local.runs import (
    CHECKPOINT_SCRIPT,
    Orch,
    expect_exit,
    last_run,
    rank_log,
    read_events,
    read_outcome,
    start_orch,
    write_script,
)
from tests.support.recorded import make_run
from tests.support.waiting import SECONDS, wait_until

SIGTERM_SCRIPT = """
import signal, sys, time

def save(number, frame):
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def start_run(folder: Path, script: str, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """Start `orch train`, and return its process and the folder of its run."""
    process = start_orch(folder, "train", write_script(folder, script), *options)
    wait_until(lambda: bool(list(folder.glob("runs/*/events.jsonl"))), "a run")
    return process, last_run(folder)


def wait_for_preemption(process: subprocess.Popen[str], run: Path) -> dict[str, Any]:
    """Wait for the end of a preempted run, and return its outcome."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, out + err
    return read_outcome(run)


def test_all_ranks_of_a_script_stop_at_the_same_step_when_one_is_signalled(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, CHECKPOINT_SCRIPT, "--ppn", "2", "--backend", "ccl")
    wait_until(lambda: len(read_events(run, "joined")) == 2, "two ranks")
    time.sleep(0.5)
    (pid,) = (event["pid"] for event in read_events(run, "started") if event["rank"] == 1)
    os.kill(pid, DEFAULT_SIGNALS[PREEMPT_SIGNAL])
    outcome = wait_for_preemption(process, run)
    (step,) = {event["step"] for event in read_events(run, "preempted")}
    assert outcome["problem"] == f"checkpoint at step {step}"
    assert [rank_log(run, rank) for rank in (0, 1)] == [f"trains\ncheckpoint {step}\n"] * 2
    assert [event["code"] for event in read_events(run, "exit")] == [75, 75]


def test_script_with_a_handler_of_sigterm_receives_it(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, SIGTERM_SCRIPT, "--ppn", "1")
    log = run / "ranks" / "rank-0.log"
    wait_until(lambda: log.exists() and "ready" in log.read_text(), "a ready rank")
    os.kill(json.loads((run / "supervisor.json").read_text())["pid"], signal.SIGTERM)
    outcome = wait_for_preemption(process, run)
    assert (outcome["state"], outcome["first_failure"]) == ("preempted", None)
    assert log.read_text() == "ready\nsaved\n"


def test_ranks_agree_about_preemption_once_a_second() -> None:
    assert calls_in(1.0, calls=1, seconds=5.0) == 1
    assert calls_in(1.0, calls=1, seconds=0.01) == 2, "the first step is too short for an estimate"
    assert calls_in(1.0, calls=64, seconds=0.64) == 100
    assert calls_in(1.0, calls=100, seconds=10.0) == 10
    assert calls_in(1.0, calls=8, seconds=0.0) == 16


# `orch stop` without an id.


def test_stop_selects_the_newest_unfinished_run_and_names_the_others(orch: Orch, tmp_path: Path) -> None:
    planned = make_run(tmp_path / "runs", "20250101-120000-qa-0000", created=1.0, ended=False)
    expect_exit(orch("train", write_script(tmp_path, CHECKPOINT_SCRIPT), "--ppn", "1", "--detach"))
    run = last_run(tmp_path)
    live = run.name
    log = run / "ranks/rank-0.log"
    wait_until(lambda: log.exists() and "trains" in log.read_text(), "a rank that could be preempted")
    make_run(tmp_path / "runs", "29990101-120000-qa-0000", created=32472144000.0)
    stopped = orch("stop")
    assert stopped.stdout.startswith(f"Stopped run {live}.\n"), stopped.stdout
    assert f"Not seen to end: {planned.name}." in stopped.stdout
    assert read_outcome(run)["state"] == "stopped"
    assert not read_events(run, "preempted"), "to stop a run is not to preempt it"
    repeated = expect_exit(orch("stop", live)).stdout
    assert repeated.startswith(f"Run {live} had already ended (stopped); nothing of it was")
    second = json.loads(orch("stop", "--json").stdout)
    assert (second["run_id"], second["not_stopped"]) == (planned.name, [])
