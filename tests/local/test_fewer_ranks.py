"""A training that goes on with fewer ranks than it was planned with: its course stays what it was.

In fp32 without dropout, whose masks depend on which rank computes what.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import orch_environment
from tests.local.runs import ORCH
from tests.local.workspaces import Workspace, make_two_hosts
from tests.support.jobs import MINILM, RECIPES, ended, flags, losses, metrics, results_of, run, started, tiny_bert
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs
QA, MRPC, PRETRAIN = (
    RECIPES / "bert_qa/run_qa.py",
    RECIPES / "glue_mrpc/run_mrpc.py",
    RECIPES / "bert_pretrain/run_pretraining.py",
)


@dataclass(frozen=True)
class Recipe:
    """`arguments`: output folder -> those for a rank; `lost`: the checkpoint after which the first
    rank is lost, and the one after which the second is."""

    script: Path
    arguments: Callable[[Path], list[str]]
    steps: int
    lost: tuple[int, int]
    batch: str


@pytest.fixture(scope="module", params=["qa", "mrpc", "pretrain"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("made")
    return {"qa": qa, "mrpc": mrpc, "pretrain": pretrain}[request.param](folder)


def qa(folder: Path) -> Recipe:
    model = tiny_bert(folder / "tiny", "BertForQuestionAnswering", layers=2)
    values = {
        "model_name_or_path": model,
        "train_file": QA.parent / "data/train.json",
        "do_train": True,
        "max_train_samples": 23,
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
    # The windows of 23 questions make 3 steps and some more.
    return Recipe(QA, lambda out: flags(output_dir=out, **values), 0, (3, 6), "6 examples")


def mrpc(folder: Path) -> Recipe:
    model = tiny_bert(folder / "tiny", "BertForSequenceClassification", layers=2)
    values = {
        "model_name_or_path": model,
        "train_file": MRPC.parent / "data/train.tsv",
        "do_eval": False,
        "max_train_samples": 44,
        "max_seq_length": 48,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "num_train_epochs": 3,
        "save_steps": 3,
        "logging_steps": 1,
        "dropout": 0,
    }
    # 7 rounds of 6 pairs: 4 steps of an epoch, the last of one round.
    return Recipe(MRPC, lambda out: flags(output_dir=out, **values), 12, (3, 6), "12 examples")


def pretrain(folder: Path) -> Recipe:
    made = folder / "data"
    run(
        RECIPES / "bert_data/prepare.py",
        *flags(
            input_file=PRETRAIN.parent / "data/text.txt",
            tokenizer_name=MINILM,
            output_dir=made,
            lengths="64:10,128:20",
            shards=3,
            dupe_factor=1,
        ),
    )
    values = {
        "data_dir": made / "data",
        "tokenizer_name": MINILM,
        "max_seq_length": 64,
        "train_batch_size": 30,
        "per_device_train_batch_size": 5,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "max_seq_length_phase2": 128,
        "train_batch_size_phase2": 6,
        "per_device_train_batch_size_phase2": 1,
        "max_steps_phase2": 4,
        "save_steps": 3,
        "logging_steps": 1,
        "dropout": 0,
    }
    return Recipe(PRETRAIN, lambda out: flags(output_dir=out, **values), 10, (3, 6), "30 examples")


def test_a_run_that_loses_ranks_learns_as_if_it_had_not(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, out = tmp_path / "calm", tmp_path / "out"
    ((_, told, _), *_) = run(recipe.script, *recipe.arguments(calm), ranks=3)
    assert "global batch stays" not in told
    course = [(line["step"], line["epoch"], line["learning_rate"]) for line in metrics(calm)]
    assert recipe.steps in (0, len(course))
    shutil.copytree(calm, out)
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "3")
    for ranks, lost in ((2, recipe.lost[0]), (1, recipe.lost[1])):
        for path in out.glob("checkpoint-*"):
            if int(path.name.partition("-")[2]) > lost:
                shutil.rmtree(path)
        if ranks == 1:  # and somebody goes on from it who has planned with one rank alone
            monkeypatch.delenv("ORCH_PLANNED_WORLD_SIZE")
        ((_, told, _), *_) = run(recipe.script, *recipe.arguments(out), ranks=ranks)
        assert f"training resumes from checkpoint-{lost}." in told
        assert f"written by {ranks + 1} ranks, this run has {ranks}" in told
        whys = ("as planned for 3 ranks", f"as in checkpoint-{lost}")
        if recipe.script == PRETRAIN:  # whose argument it is
            whys = ("as asked for phase 1", "")
        stays = f"note: the global batch stays {recipe.batch}, {whys[2 - ranks]}: "
        assert (stays in told) == bool(whys[2 - ranks])
        assert losses(out) == pytest.approx(losses(calm), rel=1e-4)
        again = [(line["step"], line["epoch"], line["learning_rate"]) for line in metrics(out)]
        assert again == course
    assert results_of(out)["steps"] == results_of(calm)["steps"] == course[-1][0]


def test_a_run_that_loses_a_rank_before_its_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, calm, out = mrpc(tmp_path / "made"), tmp_path / "calm", tmp_path / "out"
    run(recipe.script, *recipe.arguments(calm), ranks=2)
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "2")
    run(recipe.script, *recipe.arguments(out))
    assert losses(out) == pytest.approx(losses(calm), rel=1e-4)


def test_an_order_that_depends_on_the_ranks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = qa(tmp_path / "made").arguments(tmp_path / "out")
    monkeypatch.setenv("ORCH_PLANNED_WORLD_SIZE", "2")
    ((code, _, err),) = ended(started(QA, *arguments, "--dataloader_drop_last", "false"))
    assert code == 1
    assert "error: 4 examples per step cannot be kept on 1 ranks with this sampling" in err


# A node is lost: two hosts, one of which is cut off.


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("lost")
    tiny_bert(folder / "tiny", "BertForQuestionAnswering", layers=2)
    with make_two_hosts(folder, "--nodes", "2", "--ppn", "1") as ground:
        yield ground


SETTINGS = {
    "dropout": 0,
    "max_steps": 40,
    "save_steps": 4,
    "logging_steps": 1,
    "max_train_samples": 60,
    "max_seq_length": 128,
    "doc_stride": 64,
    "evaluate_before_training": "false",
    "do_eval": "false",
}


def train(ground: Workspace, *more: str) -> subprocess.Popen[str]:
    values = {**SETTINGS, "model_name_or_path": ground.folder / "tiny"}
    settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return subprocess.Popen(
        [*ORCH, "train", "bert-qa", "--precision", "fp32", *settings, *ground.options, *more],
        cwd=ground.folder,
        env=orch_environment(ground.folder),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def newest_run(ground: Workspace) -> Path:
    return max((ground.folder / "runs").iterdir(), key=lambda folder: folder.stat().st_ctime)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_run_that_loses_a_node_learns_as_if_it_had_not(ground: Workspace) -> None:
    undisturbed = train(ground)
    out, err = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, out + err
    calm = newest_run(ground)
    process = train(ground, "--max-restarts", "1", "--fresh")

    def second_checkpoint() -> bool:
        found = newest_run(ground)
        assert process.poll() is None, process.communicate()
        saves = [e for e in events(found, "progress") if e.get("phase") == "save"]
        return found != calm and max((e["step"] for e in saves), default=0) >= 8

    until(second_checkpoint, "a second checkpoint", seconds=300)
    ground.lab.cut(ground.lab.hosts[1])
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    run = newest_run(ground)
    assert [event["ranks"] for event in events(run, "launched")] == [2, 1]
    for line in (
        "restarts: 1 (also without lost nodes: the recipe keeps its global batch, order and schedule)",
        "continues without node1: 1 of 2 ranks; the recipe keeps its global batch, its order of data and its schedule",
        "the global batch stays 8 examples, as planned for 2 ranks: 1 rank computes 2 micro batches of 4",
    ):
        assert line in err
    again, course = metrics(run / "output"), metrics(calm / "output")
    assert [line["step"] for line in again] == list(range(1, 41))
    assert [line["loss"] for line in again] == pytest.approx([line["loss"] for line in course], rel=1e-4)
    assert [line["learning_rate"] for line in again] == [line["learning_rate"] for line in course]
