"""Preempt runs by a signal to the supervisor or to one rank, and check that all ranks write a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from orch_node.preemption import calls_in
from orch_node.protocol.environment import DEFAULT_SIGNALS, PREEMPT_SIGNAL

from tests.local.recipes import QA_SETTINGS
from tests.local.runs import (
    Orch,
    expect_exit,
    last_run,
    rank_log,
    read_events,
    read_outcome,
    settings_options,
    start_orch,
    write_script,
)
from tests.support.jobs import read_metrics
from tests.support.waiting import SECONDS, wait_until

pytestmark = pytest.mark.xdist_group("recipes")
CHECKPOINT_SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from orch_node import preemption

step = 0
while True:
    step += 1
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01 * (1 + dist.get_rank()))
    if preemption.requested():
        print("checkpoint", step, flush=True)
        preemption.end(step)
"""
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


class Run:
    """A running `orch train` on two ranks, and the folder of its run."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = start_orch(folder, "train", *arguments, "--ppn", "2")
        wait_until(lambda: bool(list(folder.glob("runs/*/events.jsonl"))), "a run")
        self.folder = last_run(folder)

    def await_events(self, kind: str, count: int) -> None:
        wait_until(lambda: len(read_events(self.folder, kind)) >= count, f"{count} events {kind}")

    def preempt(self) -> None:
        """Send SIGTERM to the supervisor."""
        os.kill(json.loads((self.folder / "supervisor.json").read_text())["pid"], signal.SIGTERM)

    def wait(self, code: int) -> tuple[str, dict[str, Any]]:
        """Wait for the end with this exit code, and return the output and the outcome."""
        out, err = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == code, out + err
        return out + err, read_outcome(self.folder)

    def preempted_step(self) -> int:
        """Return the step at which all ranks have written a checkpoint."""
        (step,) = {event["step"] for event in read_events(self.folder, "preempted")}
        return int(step)


def test_preempted_recipe_writes_a_checkpoint_from_which_it_resumes(tmp_path: Path, qa_model: Path, orch: Orch) -> None:
    settings = settings_options(**QA_SETTINGS, max_steps=60, save_steps=1000, model_name_or_path=qa_model)
    command = ("bert-qa", "--precision", "fp32", *settings)
    run = Run(tmp_path, *command)
    run.await_events("first_step", 1)
    run.preempt()
    output, outcome = run.wait(75)
    step = run.preempted_step()
    assert (outcome["state"], outcome["problem"]) == ("preempted", f"checkpoint at step {step}")
    assert f"preempted: checkpoint at step {step}\n" in output
    assert f"resume: orch resume {run.folder.name}\n" in output
    assert [path.name for path in run.folder.glob("output/checkpoint-*")] == [f"checkpoint-{step}"]
    resumed = expect_exit(orch("resume", run.folder.name, timeout=600))
    assert f"checkpoint-{step}" in resumed.stdout + resumed.stderr
    assert [line["step"] for line in read_metrics(run.folder / "output")] == list(range(1, 61))


def test_all_ranks_of_a_script_stop_at_the_same_step_when_one_is_signalled(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, CHECKPOINT_SCRIPT), "--backend", "ccl")
    run.await_events("joined", 2)
    time.sleep(0.5)
    (pid,) = (event["pid"] for event in read_events(run.folder, "started") if event["rank"] == 1)
    os.kill(pid, DEFAULT_SIGNALS[PREEMPT_SIGNAL])
    _, outcome = run.wait(75)
    step = run.preempted_step()
    assert outcome["problem"] == f"checkpoint at step {step}"
    assert [rank_log(run.folder, rank) for rank in (0, 1)] == [f"checkpoint {step}\n"] * 2
    assert [event["code"] for event in read_events(run.folder, "exit")] == [75, 75]


def test_script_with_a_handler_of_sigterm_receives_it(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, SIGTERM_SCRIPT), "--backend", "gloo")
    logs = [run.folder / "ranks" / f"rank-{rank}.log" for rank in (0, 1)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), "two ready ranks")
    run.preempt()
    _, outcome = run.wait(75)
    assert (outcome["state"], outcome["first_failure"]) == ("preempted", None)
    assert [log.read_text() for log in logs] == ["ready\nsaved\n"] * 2


def test_ranks_agree_about_preemption_once_a_second() -> None:
    assert calls_in(1.0, calls=1, seconds=5.0) == 1
    assert calls_in(1.0, calls=1, seconds=0.01) == 2, "the first step is too short for an estimate"
    assert calls_in(1.0, calls=64, seconds=0.64) == 100
    assert calls_in(1.0, calls=100, seconds=10.0) == 10
    assert calls_in(1.0, calls=8, seconds=0.0) == 16
