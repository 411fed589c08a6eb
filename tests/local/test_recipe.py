"""The recipe bert-qa through `orch train`: carrying on after a death, and data that is no data."""

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

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit
from tests.support.jobs import tiny_bert

pytestmark = pytest.mark.xdist_group("recipes")
HEAD = "BertForQuestionAnswering"
SETTINGS = {
    "max_steps": "30",
    "save_steps": "2",
    "logging_steps": "1",
    "max_train_samples": "48",
    "do_eval": "false",
    "evaluate_before_training": "false",
}


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    settings = SETTINGS | {"model_name_or_path": str(tiny_bert(tmp_path / "tiny", HEAD, layers=2))}
    words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    return ["train", "bert-qa", "--ppn", "2", "--precision", "fp32", *words]


def losses(output: Path) -> dict[int, float]:
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def test_the_same_command_carries_on_after_a_rank_was_killed(orch: Orch, tmp_path: Path, train: list[str]) -> None:
    expect_exit(orch(*train, "--runs-dir", "whole", timeout=300))
    (whole,) = (tmp_path / "whole").iterdir()

    kill_after_first_checkpoint(tmp_path, train)
    (killed,) = (tmp_path / "runs").iterdir()
    again = expect_exit(orch(*train, timeout=300))
    assert f"resume: carries on {killed.name}" in again.stderr

    expected, found = losses(whole / "output"), losses(killed / "output")
    assert sorted(found) == sorted(expected) == list(range(1, 31))
    assert abs(found[30] - expected[30]) <= 1e-3
    third = orch(*train, "--dry-run")
    assert "resume:" not in third.stdout, "a finished training starts anew"


def kill_after_first_checkpoint(tmp_path: Path, train: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *train],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while not (found := list(tmp_path.glob("runs/*/output/checkpoint-2"))):
        assert time.monotonic() < deadline, "no checkpoint was written"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    run = found[0].parent.parent
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    victim = next(e["pid"] for e in events if e["event"] == "started" and e["rank"] == 1)
    os.kill(victim, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1 on node0 was ended by SIGKILL" in out


def test_malformed_data_is_one_message_and_exit_code_1(orch: Orch, tmp_path: Path) -> None:
    row: dict[str, Any] = {"id": "1", "question": "q", "context": "c"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n")
    process = expect_exit(orch("train", "bert-qa", "--ppn", "2", "--set", "train_file=bad.jsonl"), 1)
    assert "bad.jsonl" in process.stdout
    assert "line 1" in process.stdout
    assert "answers" in process.stdout
    assert "Traceback" not in process.stdout
