"""Test the recipe bert-pretrain: LAMB by itself, and small pretrainings of a BERT that is 32 wide."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from orch_training import RecipeError
from orch_training.arguments import parse

from tests.local.recipes import PRETRAIN, pretrain_arguments
from tests.local.runs import Orch, expect_exit, settings_options
from tests.support.jobs import flags, read_losses, read_metrics, read_results, run_ranks

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
sys.path.insert(0, str(PRETRAIN.parent))

from pretrain_config import PretrainArguments, PretrainPhase, phases_of  # noqa: E402
from pretrain_model import Lamb, fresh_model  # noqa: E402
from transformers import BertConfig  # noqa: E402


@pytest.fixture(scope="module")
def undisturbed(pretraining_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train both phases on one rank, with dropout, and return the output folder."""
    output_dir = tmp_path_factory.mktemp("undisturbed")
    run_ranks(PRETRAIN, *pretrain_arguments(pretraining_data, output_dir))
    assert [line["phase"] for line in read_metrics(output_dir)] == [1] * 6 + [2] * 4
    return output_dir


def test_resumed_training_ends_with_the_same_weights(pretraining_data: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Resume in phase 2; test_fewer_ranks.py resumes several ranks in phase 1."""
    shutil.copytree(undisturbed, tmp_path, ignore=shutil.ignore_patterns("model"), dirs_exist_ok=True)
    changes = {"resume_from_checkpoint": tmp_path / "checkpoint-9"}
    ((_, out, _),) = run_ranks(PRETRAIN, *pretrain_arguments(pretraining_data, tmp_path, **changes))
    assert "training resumes from checkpoint-9." in out
    assert read_losses(tmp_path) == read_losses(undisturbed)
    weights, expected = (folder / "model" / "model.safetensors" for folder in (tmp_path, undisturbed))
    assert weights.read_bytes() == expected.read_bytes()
    assert read_results(tmp_path)["after"] == read_results(undisturbed)["after"]


def test_separate_phases_have_the_losses_of_one_run(pretraining_data: Path, undisturbed: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for output_dir, changes in (
        (first, {"phase": 1}),
        (second, {"phase": 2, "init_checkpoint": first / "checkpoint-6"}),
    ):
        run_ranks(PRETRAIN, *pretrain_arguments(pretraining_data, output_dir, **changes))
    assert read_losses(first) + read_losses(second) == read_losses(undisturbed)


def test_first_step_of_lamb_moves_weights_by_the_sign_of_the_gradient() -> None:
    """Compare with a calculation by hand: the corrected moments of the first step are the gradient."""
    decayed = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    plain = torch.nn.Parameter(torch.tensor([1.0]))
    lamb = Lamb([{"params": [decayed], "weight_decay": 0.1}, {"params": [plain]}], lr=0.5)
    decayed.grad, plain.grad = torch.tensor([2.0, 0.5]), torch.tensor([-7.0])
    lamb.step()
    change = torch.tensor([1.0 + 0.3, 1.0 - 0.4])
    expected = torch.tensor([3.0, -4.0]) - 0.5 * 5 / change.norm() * change
    assert torch.allclose(decayed, expected, atol=1e-4)
    assert torch.allclose(plain, torch.tensor([1.5]), atol=1e-4)


def test_learning_rate_follows_nvidias_schedule() -> None:
    phase = PretrainPhase("phase 1", 100, 200, 64, number=1, length=128, micro=8, learning_rate=6e-3, warmup=0.25)
    assert phase.rate(110) == pytest.approx(6e-3 * 0.4)
    assert phase.rate(125) == pytest.approx(6e-3 * 0.75**0.5)
    assert phase.rate(200) == 0


def test_batch_that_cannot_be_divided_among_the_ranks_is_refused() -> None:
    (args,) = parse(flags(output_dir="o", data_dir="d", train_batch_size=100), (PretrainArguments,))
    with pytest.raises(RecipeError, match="phase 1: 100 sequences per step cannot be dealt out"):
        phases_of(args)


def test_configuration_with_fewer_positions_than_tokens_is_refused(tmp_path: Path) -> None:
    BertConfig(max_position_embeddings=128).save_pretrained(tmp_path)
    (args,) = parse(flags(output_dir="o", data_dir="d", config_name=tmp_path), (PretrainArguments,))
    with pytest.raises(RecipeError, match="has 128 positions, phase 2 needs 512"):
        fresh_model(args, 30522, phases_of(args))


def test_loss_falls_in_both_phases(orch: Orch) -> None:
    """Train with fewer and smaller steps than the recipe has."""
    settings = settings_options(max_steps=40, train_batch_size=16, max_steps_phase2=8, train_batch_size_phase2=8)
    process = orch("train", "bert-pretrain", "--ppn", "1", "--precision", "fp32", "--json", *settings, timeout=900)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["after"]["loss, phase 1"] < result["before"]["loss, phase 1"] - 1
    assert result["after"]["loss, phase 2"] < result["before"]["loss, phase 2"] - 0.05
