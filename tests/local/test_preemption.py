"""Making room: a signal to a run, or to one of its ranks, means a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from orch_node import stack_signal
from orch_node.preemption import calls_in

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit
from tests.support.jobs import RECIPES, ended, flags, started, tiny_bert
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("recipes")
OWN = """
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
HANDLES = """
import signal, sys, time

def save(number, frame):
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    path = run / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["event"] == kind]


def supervisor_of(run: Path) -> int:
    return int(json.loads((run / "supervisor.json").read_text())["pid"])


class Run:
    """`orch train` as a program, and the folder of its run."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli.main", "train", *words],
            cwd=folder,
            env=orch_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: bool(list(folder.glob("runs/*/events.jsonl"))), "a run", seconds=60)
        (self.folder,) = (folder / "runs").iterdir()

    def await_log(self, words: str) -> None:
        logs = self.folder / "ranks"
        until(
            lambda: all(words in one.read_text() for one in self.logs) and len(self.logs) == 2,
            f"{words} in {logs}",
            seconds=60,
        )

    @property
    def logs(self) -> list[Path]:
        return sorted((self.folder / "ranks").glob("*.log"))

    def end(self) -> tuple[int, str, dict[str, Any]]:
        """-> exit code, what was said, the outcome."""
        out, err = self.process.communicate(timeout=60)
        return (self.process.returncode, out + err, json.loads((self.folder / "outcome.json").read_text()))


def test_the_recipe_writes_a_checkpoint_and_goes_on_from_it(tmp_path: Path, orch: Orch) -> None:
    model = tiny_bert(tmp_path / "tiny", "BertForQuestionAnswering", layers=2)
    settings = {
        "max_steps": 60,
        "save_steps": 1000,
        "logging_steps": 1,
        "max_train_samples": 48,
        "do_eval": "false",
        "evaluate_before_training": "false",
        "model_name_or_path": model,
    }
    words = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = ("bert-qa", "--ppn", "2", "--precision", "fp32", *words)
    run = Run(tmp_path, *command)
    until(lambda: bool(events(run.folder, "first_step")), "a step", seconds=120)
    os.kill(supervisor_of(run.folder), signal.SIGTERM)
    code, said, outcome = run.end()
    (step,) = {one["step"] for one in events(run.folder, "preempted")}
    assert code == 75, said
    assert (outcome["state"], outcome["problem"]) == ("preempted", f"checkpoint at step {step}")
    assert f"preempted: checkpoint at step {step}; start again with the same command" in said
    assert [one.name for one in run.folder.glob("output/checkpoint-*")] == [f"checkpoint-{step}"]

    again = expect_exit(orch("train", *command, timeout=300))
    assert f"resume: carries on {run.folder.name}" in again.stderr
    lines = (run.folder / "output" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 61))


@pytest.mark.parametrize("backend", ["gloo", "ccl"])
def test_ranks_of_an_own_script_stop_at_the_same_step(tmp_path: Path, backend: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    run = Run(tmp_path, "own.py", "--ppn", "2", "--backend", backend)
    until(lambda: len(events(run.folder, "joined")) == 2, "two ranks", seconds=60)
    time.sleep(0.5)
    (rank,) = (one for one in events(run.folder, "started") if one["rank"] == 1)
    os.kill(rank["pid"], stack_signal.DEFAULTS[stack_signal.PREEMPT])  # one alone
    code, said, outcome = run.end()
    assert code == 75, said
    (step,) = {one["step"] for one in events(run.folder, "preempted")}
    assert outcome["problem"] == f"checkpoint at step {step}"
    assert [one.read_text() for one in run.logs] == [f"checkpoint {step}\n"] * 2
    assert [one["code"] for one in events(run.folder, "exit")] == [75, 75]


def test_a_script_with_a_handler_of_its_own_gets_sigterm(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HANDLES)
    run = Run(tmp_path, "own.py", "--ppn", "2", "--backend", "gloo")
    run.await_log("ready")
    os.kill(supervisor_of(run.folder), signal.SIGTERM)
    code, said, outcome = run.end()
    assert code == 75, said
    assert (outcome["state"], outcome["first_failure"]) == ("preempted", None)
    assert [one.read_text() for one in run.logs] == ["ready\nsaved\n"] * 2


def test_a_stop_is_no_preemption(tmp_path: Path, orch: Orch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    run = Run(tmp_path, "own.py", "--ppn", "2", "--backend", "gloo")
    until(lambda: len(events(run.folder, "joined")) == 2, "two ranks", seconds=60)
    expect_exit(orch("stop", run.folder.name))
    code, said, outcome = run.end()
    assert (code, outcome["state"]) == (130, "stopped"), said
    assert not events(run.folder, "preempted")


def test_one_rank_of_a_recipe_that_is_told_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_PREEMPT_SIGNAL", str(int(signal.SIGUSR1)))
    recipe = RECIPES / "glue_mrpc"
    arguments = flags(
        model_name_or_path=tiny_bert(tmp_path / "tiny", "BertForSequenceClassification", layers=2),
        train_file=recipe / "data" / "train.tsv",
        validation_file=recipe / "data" / "eval.tsv",
        output_dir=tmp_path / "out",
        max_steps=5000,
        max_seq_length=48,
        do_eval="false",
        per_device_train_batch_size=4,
        save_steps=0,
    )
    ranks = started(recipe / "run_mrpc.py", *arguments, ranks=2, warm=False)
    metrics = tmp_path / "out" / "metrics.jsonl"
    until(lambda: metrics.exists() and bool(metrics.read_text()), "a step", seconds=120)
    assert isinstance(ranks[1], subprocess.Popen)
    ranks[1].send_signal(signal.SIGUSR1)
    found = ended(ranks)
    assert [code for code, _, _ in found] == [75, 75], found
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert saved.name == f"checkpoint-{last['step']}"


def test_the_ranks_ask_each_other_about_once_a_second() -> None:
    assert calls_in(1.0, calls=1, seconds=5.0) == 1
    assert calls_in(1.0, calls=1, seconds=0.01) == 2, "a first step may be quick, and no measure"
    assert calls_in(1.0, calls=64, seconds=0.64) == 100
    assert calls_in(1.0, calls=100, seconds=10.0) == 10
    assert calls_in(1.0, calls=8, seconds=0.0) == 16
