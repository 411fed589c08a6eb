"""Continue trainings with fewer ranks than planned, and check that they learn the same.

In fp32 and without dropout, whose masks depend on which rank computes which examples.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local import recipes
from tests.local.runs import last_run, read_events, settings_options, start_orch, wait_for_exit
from tests.local.workspaces import Workspace, make_hosts
from tests.support.jobs import read_losses, read_metrics, read_results, run_ranks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
STEPS = 28  # of the run that loses a node after step 8


def make_mrpc_arguments(model: Path, output_dir: Path) -> list[str]:
    changes = {
        "do_eval": False,
        "max_train_samples": 44,  # 7 micro batches of 6 pairs: an epoch has 4 steps, the last of one micro batch
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "save_steps": 3,
        "dropout": 0,
    }
    return recipes.mrpc_arguments(model, output_dir, **changes)


def make_pretrain_arguments(data: Path, output_dir: Path) -> list[str]:
    changes = {
        "train_batch_size": 30,
        "per_device_train_batch_size": 5,
        "train_batch_size_phase2": 6,
        "per_device_train_batch_size_phase2": 1,
        "dropout": 0,
    }
    return recipes.pretrain_arguments(data, output_dir, **changes)


def schedule(output_dir: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["epoch"], line["learning_rate"]) for line in read_metrics(output_dir)]


@pytest.mark.parametrize(
    ("script", "fixture", "make_arguments", "steps", "batch"),
    [
        (recipes.MRPC, "pair_model", make_mrpc_arguments, 12, "12 examples, as planned for 3 ranks"),
        (recipes.PRETRAIN, "pretraining_data", make_pretrain_arguments, 10, "30 examples, as asked for phase 1"),
    ],
)
def test_recipe_that_loses_a_rank_learns_the_same(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Path,
    fixture: str,
    make_arguments: Callable[[Path, Path], list[str]],
    steps: int,
    batch: str,
) -> None:
    """Continue with two of three ranks; a run of bert-qa loses a node below."""
    source = request.getfixturevalue(fixture)
    undisturbed, resumed = tmp_path / "undisturbed", tmp_path / "resumed"
    ((_, output, _), *_) = run_ranks(script, *make_arguments(source, undisturbed), ranks=3)
    assert "global batch stays" not in output
    assert len(schedule(undisturbed)) == steps
    shutil.copytree(undisturbed, resumed)
    for path in resumed.glob("checkpoint-*"):
        if path.name != "checkpoint-3":
            shutil.rmtree(path)
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "3")
    ((_, output, _), *_) = run_ranks(script, *make_arguments(source, resumed), ranks=2)
    assert "training resumes from checkpoint-3." in output
    assert "written by 3 ranks, this run has 2" in output
    assert f"note: the global batch stays {batch}: " in output
    assert read_losses(resumed) == pytest.approx(read_losses(undisturbed), rel=1e-4)
    assert schedule(resumed) == schedule(undisturbed)
    assert read_results(resumed)["steps"] == read_results(undisturbed)["steps"] == steps
    if script == recipes.MRPC:  # also if ranks are lost before the first checkpoint
        restarted = tmp_path / "restarted"
        run_ranks(script, *make_arguments(source, restarted))
        assert read_losses(restarted) == pytest.approx(read_losses(undisturbed), rel=1e-4)


# A node is lost: one of two hosts is cut off.


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with make_hosts(tmp_path_factory.mktemp("lost"), "--nodes", "2", "--ppn", "1") as workspace:
        yield workspace


def test_run_that_loses_a_node_learns_the_same(workspace: Workspace, qa_model: Path, tmp_path: Path) -> None:
    """Compare the losses with those of two ranks without orch, which nothing has disturbed."""
    settings = {
        **recipes.QA_SETTINGS,
        "model_name_or_path": str(qa_model),
        "dropout": 0,
        "max_steps": STEPS,
        "save_steps": 4,
        "max_train_samples": 60,
        "max_seq_length": 128,
        "doc_stride": 64,
    }
    run_ranks(recipes.QA, *recipes.qa_defaults(tmp_path, **settings), ranks=2)
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
    ended = wait_for_exit(process, seconds=600)
    assert "Traceback" not in ended.stderr
    run = last_run(workspace.folder)
    assert [event["ranks"] for event in read_events(run, "launched")] == [2, 1]
    for line in (
        "restarts: 1 (also without lost nodes: the recipe keeps its global batch, order and schedule)",
        "continues without node1: 1 of 2 ranks; the recipe keeps its global batch, its order of data and its schedule",
        "the global batch stays 8 examples, as planned for 2 ranks: 1 rank computes 2 micro batches of 4",
    ):
        assert line in ended.stdout + ended.stderr
    result = run / "output"
    assert [step for step, _, _ in schedule(result)] == list(range(1, STEPS + 1))
    assert read_losses(result) == pytest.approx(read_losses(tmp_path), rel=1e-4)
    assert [rate for _, _, rate in schedule(result)] == [rate for _, _, rate in schedule(tmp_path)]
