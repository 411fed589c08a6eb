"""Run the recipe bert-qa with `orch train`: resume it after a rank was killed, and give it invalid data."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.local.recipes import QA_SETTINGS
from tests.local.runs import Orch, expect_exit, read_events, settings_options, start_orch
from tests.support.jobs import read_losses, read_metrics

pytestmark = pytest.mark.xdist_group("recipes")


@pytest.fixture
def command(qa_model: Path) -> list[str]:
    settings = settings_options(**QA_SETTINGS, max_steps=30, save_steps=2, model_name_or_path=qa_model)
    return ["train", "bert-qa", "--ppn", "2", "--precision", "fp32", *settings]


def test_run_is_resumed_after_a_rank_was_killed(orch: Orch, tmp_path: Path, command: list[str]) -> None:
    expect_exit(orch(*command, "--runs-dir", "undisturbed", timeout=300))
    (undisturbed,) = (tmp_path / "undisturbed").glob("*/")

    kill_rank_after_first_checkpoint(tmp_path, command)
    (killed,) = (tmp_path / "runs").glob("*/")
    resumed = expect_exit(orch("resume", timeout=300))
    assert "resume: attempt 2 (the last one failed; from the newest valid checkpoint)" in resumed.stderr

    expected, result = undisturbed / "output", killed / "output"
    for output_dir in (result, expected):
        assert [line["step"] for line in read_metrics(output_dir)] == list(range(1, 31))
    assert abs(read_losses(result)[-1] - read_losses(expected)[-1]) <= 1e-3
    assert "resume" not in orch(*command, "--dry-run").stderr, "the run is done"


def kill_rank_after_first_checkpoint(folder: Path, command: list[str]) -> None:
    process = start_orch(folder, *command)
    deadline = time.monotonic() + 200
    while not (checkpoints := list(folder.glob("runs/*/output/checkpoint-2"))):
        assert time.monotonic() < deadline, "no checkpoint was written"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    started = read_events(checkpoints[0].parent.parent, "started")
    os.kill(next(event["pid"] for event in started if event["rank"] == 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1 on node0 was ended by SIGKILL" in err


def test_invalid_data_fails_with_one_message(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"id": "1", "question": "q", "context": "c"}) + "\n")
    process = expect_exit(orch("train", "bert-qa", "--ppn", "2", "--set", "train_file=bad.jsonl"), 1)
    for text in ("bad.jsonl", "line 1", "answers"):
        assert text in process.stderr
    assert "Traceback" not in process.stderr
