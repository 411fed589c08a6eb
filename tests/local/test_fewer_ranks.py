"""Continue trainings with fewer ranks than planned, and check that they learn the same.

In fp32 and without dropout, whose masks depend on which rank computes which examples.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local.recipes import (
    MRPC,
    PRETRAIN,
    QA,
    QA_SETTINGS,
    mrpc_arguments,
    pretrain_arguments,
    qa_arguments,
    qa_defaults,
)
from tests.local.runs import last_run, read_events, settings_options, start_orch
from tests.local.workspaces import Workspace, make_hosts
from tests.support.jobs import read_losses, read_metrics, read_results, run_ranks, start_ranks, wait_for_ranks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
STEPS = 28  # of the run that loses a node after step 8
# Step of the last checkpoint before only this many ranks remain. One rank resumes only glue-mrpc: the others choose the
# batch in the same way, and a run of bert-qa loses a node below.
LAST_CHECKPOINTS = {QA: {2: 3}, MRPC: {2: 3, 1: 6}, PRETRAIN: {2: 3}}


@dataclass(frozen=True)
class Recipe:
    """A training of a recipe on three ranks.

    Attributes:
        arguments: returns the arguments of the script for an output folder.
        steps: expected number of steps; 0 if it depends on the tokenizer.
        batch: global batch as the script prints it.
    """

    script: Path
    arguments: Callable[[Path], list[str]]
    steps: int
    batch: str


def make_qa(model: Path) -> Recipe:
    changes = {
        "do_train": True,
        "max_train_samples": 23,  # its windows fill 3 steps and part of a fourth
        "max_seq_length": 128,
        "doc_stride": 32,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "warmup_ratio": 0.2,
        "num_train_epochs": 3,
        "save_steps": 3,
        "logging_steps": 1,
        "dropout": 0,
        "pad_to_max_length": False,
    }
    return Recipe(QA, lambda output_dir: qa_arguments(model, output_dir, **changes), 0, "6 examples")


def make_mrpc(model: Path) -> Recipe:
    changes = {
        "do_eval": False,
        "max_train_samples": 44,  # 7 micro batches of 6 pairs: an epoch has 4 steps, the last of one micro batch
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "save_steps": 3,
        "dropout": 0,
    }
    return Recipe(MRPC, lambda output_dir: mrpc_arguments(model, output_dir, **changes), 12, "12 examples")


def make_pretrain(data: Path) -> Recipe:
    changes = {
        "train_batch_size": 30,
        "per_device_train_batch_size": 5,
        "train_batch_size_phase2": 6,
        "per_device_train_batch_size_phase2": 1,
        "dropout": 0,
    }
    return Recipe(PRETRAIN, lambda output_dir: pretrain_arguments(data, output_dir, **changes), 10, "30 examples")


@pytest.fixture(params=["qa", "mrpc", "pretrain"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    fixture, make = {
        "qa": ("qa_model", make_qa),
        "mrpc": ("pair_model", make_mrpc),
        "pretrain": ("pretraining_data", make_pretrain),
    }[request.param]
    return make(request.getfixturevalue(fixture))


def schedule(output_dir: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["epoch"], line["learning_rate"]) for line in read_metrics(output_dir)]


def test_recipe_that_loses_ranks_learns_the_same(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, resumed = tmp_path / "undisturbed", tmp_path / "resumed"
    ((_, output, _), *_) = run_ranks(recipe.script, *recipe.arguments(undisturbed), ranks=3)
    assert "global batch stays" not in output
    expected_schedule = schedule(undisturbed)
    assert recipe.steps in (0, len(expected_schedule))
    shutil.copytree(undisturbed, resumed)
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "3")
    for ranks, last_checkpoint in LAST_CHECKPOINTS[recipe.script].items():
        for path in resumed.glob("checkpoint-*"):
            if int(path.name.partition("-")[2]) > last_checkpoint:
                shutil.rmtree(path)
        if ranks == 1:  # this time the user has planned with one rank
            monkeypatch.delenv("ORCH_PLANNED_WORLD_SIZE")
        ((_, output, _), *_) = run_ranks(recipe.script, *recipe.arguments(resumed), ranks=ranks)
        assert f"training resumes from checkpoint-{last_checkpoint}." in output
        assert f"written by {ranks + 1} ranks, this run has {ranks}" in output
        reason = {2: "as planned for 3 ranks", 1: f"as in checkpoint-{last_checkpoint}"}[ranks]
        if recipe.script == PRETRAIN:  # its global batch is an argument
            reason = "as asked for phase 1"
        assert f"note: the global batch stays {recipe.batch}, {reason}: " in output
        assert read_losses(resumed) == pytest.approx(read_losses(undisturbed), rel=1e-4)
        assert schedule(resumed) == expected_schedule
    assert read_results(resumed)["steps"] == read_results(undisturbed)["steps"] == expected_schedule[-1][0]
    if recipe.script == MRPC:  # also if ranks are lost before the first checkpoint
        restarted = tmp_path / "restarted"
        monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "3")
        run_ranks(recipe.script, *recipe.arguments(restarted))
        assert read_losses(restarted) == pytest.approx(read_losses(undisturbed), rel=1e-4)


def test_order_that_depends_on_ranks_is_refused(
    qa_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "2")
    arguments = make_qa(qa_model).arguments(tmp_path)
    ((code, _, err),) = wait_for_ranks(start_ranks(QA, *arguments, "--dataloader_drop_last", "false"))
    assert code == 1
    assert "error: 4 examples per step cannot be kept on 1 ranks with this sampling" in err


# A node is lost: one of two hosts is cut off.


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with make_hosts(tmp_path_factory.mktemp("lost"), "--nodes", "2", "--ppn", "1") as workspace:
        yield workspace


def test_run_that_loses_a_node_learns_the_same(workspace: Workspace, qa_model: Path, tmp_path: Path) -> None:
    """Compare the losses with those of two ranks without orch, which nothing has disturbed."""
    settings = {
        **QA_SETTINGS,
        "model_name_or_path": str(qa_model),
        "dropout": 0,
        "max_steps": STEPS,
        "save_steps": 4,
        "max_train_samples": 60,
        "max_seq_length": 128,
        "doc_stride": 64,
    }
    run_ranks(QA, *qa_defaults(tmp_path, **settings), ranks=2)
    arguments = ("train", "bert-qa", "--precision", "fp32", *settings_options(**settings), *workspace.options)
    process = start_orch(workspace.folder, *arguments, "--max-restarts", "1")

    def second_checkpoint_exists() -> bool:
        assert process.poll() is None, process.communicate()
        runs = workspace.folder.glob("runs/*/")
        saves = (
            event["step"] for run in runs for event in read_events(run, "progress") if event.get("phase") == "save"
        )
        return max(saves, default=0) >= 8

    wait_until(second_checkpoint_exists, "a second checkpoint")
    workspace.lab.disconnect(workspace.lab.hosts[1])
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    run = last_run(workspace.folder)
    assert [event["ranks"] for event in read_events(run, "launched")] == [2, 1]
    for line in (
        "restarts: 1 (also without lost nodes: the recipe keeps its global batch, order and schedule)",
        "continues without node1: 1 of 2 ranks; the recipe keeps its global batch, its order of data and its schedule",
        "the global batch stays 8 examples, as planned for 2 ranks: 1 rank computes 2 micro batches of 4",
    ):
        assert line in out + err
    result = run / "output"
    assert [step for step, _, _ in schedule(result)] == list(range(1, STEPS + 1))
    assert read_losses(result) == pytest.approx(read_losses(tmp_path), rel=1e-4)
    assert [rate for _, _, rate in schedule(result)] == [rate for _, _, rate in schedule(tmp_path)]
