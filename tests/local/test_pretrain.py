"""The recipe bert-pretrain: LAMB as a value, and small pretrainings with bert-tiny."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.local.runs import expect_exit
from tests.support.jobs import MINILM, RECIPES, ended, flags, losses, metrics, results_of, run, started
from tests.support.waiting import until

SCRIPT = RECIPES / "bert_pretrain" / "run_pretraining.py"
TEXT = SCRIPT.parent / "data" / "text.txt"
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
sys.path.insert(0, str(SCRIPT.parent))

from lamb import Lamb  # noqa: E402
from pretrain_config import Phase, parse_arguments, phases_of  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    run(
        RECIPES / "bert_data" / "prepare.py",
        *flags(input_file=TEXT, tokenizer_name=MINILM, output_dir=out, lengths="64:10,128:20", shards=3, dupe_factor=1),
    )
    return out / "data"


def arguments(data: Path, output_dir: Path, **more: object) -> list[str]:
    values: dict[str, object] = {
        "data_dir": data,
        "tokenizer_name": MINILM,
        "output_dir": output_dir,
        "max_seq_length": 64,
        "train_batch_size": 16,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "max_seq_length_phase2": 128,
        "train_batch_size_phase2": 8,
        "per_device_train_batch_size_phase2": 2,
        "max_steps_phase2": 4,
        "save_steps": 3,
        "logging_steps": 1,
    }
    return flags(**(values | more))


def test_ranks_and_micro_batches_do_not_change_the_course(data: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    whole = {"per_device_train_batch_size": 16, "per_device_train_batch_size_phase2": 8}
    run(SCRIPT, *arguments(data, one, dropout=0, **whole))
    run(SCRIPT, *arguments(data, two, dropout=0), ranks=2)
    assert len(losses(one)) == 10
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert [line["phase"] for line in metrics(two)] == [1] * 6 + [2] * 4


def test_a_run_goes_on_exactly_from_any_checkpoint(data: Path, tmp_path: Path) -> None:
    """In phase 1, between the phases, and in phase 2; with dropout."""
    command = arguments(data, tmp_path)
    run(SCRIPT, *command, ranks=2)
    expected, result = losses(tmp_path), results_of(tmp_path)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    for step in (9, 6, 3):
        (_, out, _), _ = run(SCRIPT, *command, "--resume_from_checkpoint", tmp_path / f"checkpoint-{step}", ranks=2)
        assert f"training resumes from checkpoint-{step}." in out
        assert losses(tmp_path) == expected
        assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
        assert results_of(tmp_path)["after"] == result["after"]


def test_one_rank_that_is_told_to_make_room_is_enough(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All write the checkpoint of one step; the losses are those of a run that was never told."""
    small = {
        "train_batch_size": 4,
        "per_device_train_batch_size": 2,
        "save_steps": 0,
        "max_steps": 60,
        "max_steps_phase2": 2,
    }
    run(SCRIPT, *arguments(data, tmp_path / "undisturbed", **small), ranks=2)
    command = arguments(data, tmp_path / "told", **small)
    with monkeypatch.context() as told:
        told.setenv("ORCH_PREEMPT_SIGNAL", str(int(signal.SIGUSR1)))
        ranks = started(SCRIPT, *command, ranks=2)
    lines = tmp_path / "told" / "metrics.jsonl"
    until(lambda: lines.exists() and bool(lines.read_text()), "a step", seconds=120)
    os.kill(ranks[1].pid, signal.SIGUSR1)
    found = ended(ranks)
    assert [code for code, _, _ in found] == [75, 75], found
    (saved,) = (tmp_path / "told").glob("checkpoint-*")
    step = len(metrics(tmp_path / "told"))
    assert (saved.name, step < 60) == (f"checkpoint-{step}", True)
    (_, out, _), _ = run(SCRIPT, *command, "--resume_from_checkpoint", saved, ranks=2)
    assert f"training resumes from checkpoint-{step}." in out
    assert losses(tmp_path / "told") == losses(tmp_path / "undisturbed")


def test_the_phases_can_be_run_apart(data: Path, tmp_path: Path) -> None:
    both, apart, second = tmp_path / "both", tmp_path / "first", tmp_path / "second"
    run(SCRIPT, *arguments(data, both, dropout=0))
    run(SCRIPT, *arguments(data, apart, dropout=0, phase=1))
    run(SCRIPT, *arguments(data, second, dropout=0, phase=2, init_checkpoint=apart / "checkpoint-6"))
    assert losses(apart) + losses(second) == losses(both)
    ((code, _, err),) = ended(started(SCRIPT, *arguments(data, tmp_path / "x", phase=2)))
    assert code == 1
    assert "phase 2 needs the last checkpoint of phase 1, checkpoint-6" in err


def test_the_first_step_of_lamb() -> None:
    """By hand: the moments corrected for their start are the gradient, so it moves by its sign."""
    decays = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    stays = torch.nn.Parameter(torch.tensor([1.0]))
    lamb = Lamb([{"params": [decays], "weight_decay": 0.1}, {"params": [stays]}], lr=0.5, max_grad_norm=0)
    decays.grad, stays.grad = torch.tensor([2.0, 0.5]), torch.tensor([-7.0])
    lamb.step()
    change = torch.tensor([1.0 + 0.3, 1.0 - 0.4])
    expected = torch.tensor([3.0, -4.0]) - 0.5 * 5 / change.norm() * change
    assert torch.allclose(decays, expected, atol=1e-4)
    assert torch.allclose(stays, torch.tensor([1.5]), atol=1e-4)


def test_the_learning_rate_is_nvidias() -> None:
    phase = Phase(number=1, length=128, batch=64, micro=8, learning_rate=6e-3, warmup=0.25, before=100, last=200)
    assert phase.rate(110) == pytest.approx(6e-3 * 0.4)
    assert phase.rate(125) == pytest.approx(6e-3 * 0.75**0.5)
    assert phase.rate(200) == 0


def test_batches_that_cannot_be_dealt_out_are_refused() -> None:
    from orch_training.errors import RecipeError

    args = parse_arguments(flags(output_dir="o", data_dir="d", train_batch_size=100))
    with pytest.raises(RecipeError, match="phase 1: 100 sequences per step cannot be dealt out"):
        phases_of(args)


def test_the_preset_is_what_was_published() -> None:
    from orchestrator import load

    settings = load.recipe("bert-pretrain").settings("full", {})
    published = {
        "train_batch_size": 8 * 8192,
        "learning_rate": 6e-3,
        "warmup_proportion": 0.2843,
        "max_steps": 7038,
        "train_batch_size_phase2": 8 * 4096,
        "learning_rate_phase2": 4e-3,
        "warmup_proportion_phase2": 0.128,
        "max_steps_phase2": 1563,
        "seed": 12439,
    }
    assert {name: settings[name] for name in published} == published
    assert 65536 // (8 * int(str(settings["per_device_train_batch_size"]))) == 128
    assert 32768 // (8 * int(str(settings["per_device_train_batch_size_phase2"]))) == 512


def test_the_loss_falls_in_both_phases(orch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """It does so in fewer and smaller steps than the recipe has."""
    fewer = {"max_steps": 60, "train_batch_size": 16, "max_steps_phase2": 8, "train_batch_size_phase2": 8}
    given = (word for name, value in fewer.items() for word in ("--set", f"{name}={value}"))
    process = expect_exit(
        orch("train", "bert-pretrain", "--ppn", "2", "--precision", "fp32", "--json", *given, timeout=900)
    )
    result: dict[str, Any] = json.loads(process.stdout)["result"]
    assert result["after"]["loss, phase 1"] < result["before"]["loss, phase 1"] - 2
    assert result["after"]["loss, phase 2"] < result["before"]["loss, phase 2"] - 0.1
