"""Preempt recipes, and run bert-qa with `orch train` and resume it after a rank was killed and after preemption."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.recipes import MRPC, PRETRAIN, QA, QA_SETTINGS, mrpc_arguments, pretrain_arguments, qa_defaults
from tests.local.runs import Orch, expect_exit, last_run, read_events, read_outcome, settings_options, start_orch
from tests.support.jobs import read_losses, read_metrics, run_ranks, start_ranks, wait_for_ranks
from tests.support.waiting import SECONDS, wait_until

pytestmark = pytest.mark.xdist_group("recipes")


@pytest.mark.parametrize(
    ("script", "make_arguments", "fixture"),
    [(MRPC, mrpc_arguments, "pair_model"), (PRETRAIN, pretrain_arguments, "pretraining_data")],
)
def test_preempting_one_rank_stops_all(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Path,
    make_arguments: Callable[..., list[str]],
    fixture: str,
) -> None:
    monkeypatch.setenv("ORCH_PREEMPT_SIGNAL", str(int(signal.SIGUSR1)))
    arguments = make_arguments(request.getfixturevalue(fixture), tmp_path, save_steps=0, max_steps=5000)
    ranks = start_ranks(script, *arguments, ranks=2)
    metrics = tmp_path / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and bool(metrics.read_text()), "a step")
    os.kill(ranks[1].pid, signal.SIGUSR1)
    results = wait_for_ranks(ranks)
    assert [code for code, _, _ in results] == [75, 75], results
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{len(read_metrics(tmp_path))}"


def test_run_is_resumed_after_a_killed_rank_and_after_preemption(orch: Orch, tmp_path: Path, qa_model: Path) -> None:
    """Compare the losses with those of two ranks without orch, which nothing has disturbed."""
    settings = {**QA_SETTINGS, "max_steps": 60, "save_steps": 10, "model_name_or_path": str(qa_model)}
    expected = tmp_path / "undisturbed"
    run_ranks(QA, *qa_defaults(expected, **settings), ranks=2)
    command = ["train", "bert-qa", "--ppn", "2", "--precision", "fp32", *settings_options(**settings)]
    run = kill_rank_after_first_checkpoint(tmp_path, command)
    first_steps = len(read_events(run, "first_step"))
    with start_orch(tmp_path, "resume") as process:
        wait_until(lambda: len(read_events(run, "first_step")) > first_steps, "a step after the checkpoint")
        os.kill(json.loads((run / "supervisor.json").read_text())["pid"], signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, out + err
    assert "resume: attempt 2 (the last one failed; from the newest valid checkpoint)" in err
    (step,) = {event["step"] for event in read_events(run, "preempted")}
    assert (read_outcome(run)["state"], read_outcome(run)["problem"]) == ("preempted", f"checkpoint at step {step}")
    assert f"resume: orch resume {run.name}\n" in err
    resumed = expect_exit(orch("resume", timeout=300))
    assert f"checkpoint-{step}" in resumed.stdout + resumed.stderr

    result = run / "output"
    for output_dir in (result, expected):
        assert [line["step"] for line in read_metrics(output_dir)] == list(range(1, 61))
    assert abs(read_losses(result)[-1] - read_losses(expected)[-1]) <= 1e-3
    assert "resume" not in orch(*command, "--dry-run").stderr, "the run is done"


def kill_rank_after_first_checkpoint(folder: Path, command: list[str]) -> Path:
    """Start a run and kill its rank 1; return the run's folder."""
    process = start_orch(folder, *command)
    wait_until(lambda: list(folder.glob("runs/*/output/checkpoint-10")), "a checkpoint")
    run = last_run(folder)
    os.kill(next(event["pid"] for event in read_events(run, "started") if event["rank"] == 1), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "rank 1 on node0 was ended by SIGKILL" in err
    return run
