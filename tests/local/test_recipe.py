"""Run the recipe bert-qa with `orch train`: resume it after a rank was killed, and give it invalid data."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.local.recipes import QA, QA_SETTINGS, qa_defaults
from tests.local.runs import Orch, expect_exit, read_events, settings_options, start_orch
from tests.support.jobs import read_losses, read_metrics, run_ranks

pytestmark = pytest.mark.xdist_group("recipes")


def test_run_is_resumed_after_a_rank_was_killed(orch: Orch, tmp_path: Path, qa_model: Path) -> None:
    """Compare the losses with those of two ranks without orch, which nothing has disturbed."""
    settings = {**QA_SETTINGS, "max_steps": 30, "save_steps": 2, "model_name_or_path": str(qa_model)}
    expected = tmp_path / "undisturbed"
    run_ranks(QA, *qa_defaults(expected, **settings), ranks=2)
    command = ["train", "bert-qa", "--ppn", "2", "--precision", "fp32", *settings_options(**settings)]
    kill_rank_after_first_checkpoint(tmp_path, command)
    (killed,) = (tmp_path / "runs").glob("*/")
    resumed = expect_exit(orch("resume", timeout=300))
    assert "resume: attempt 2 (the last one failed; from the newest valid checkpoint)" in resumed.stderr

    result = killed / "output"
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
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "rank 1 on node0 was ended by SIGKILL" in err


def test_invalid_data_fails_with_one_message(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"id": "1", "question": "q", "context": "c"}) + "\n")
    process = expect_exit(orch("train", "bert-qa", "--ppn", "1", "--set", "train_file=bad.jsonl"), 1)
    for text in ("bad.jsonl", "line 1", "answers"):
        assert text in process.stderr
    assert "Traceback" not in process.stderr
