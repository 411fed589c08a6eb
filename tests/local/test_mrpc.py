"""The recipe glue-mrpc: with a tiny random BERT (32 wide, 2 layers), and once as it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import RECIPES, ended, flags, losses, metrics, results_of, run, started, tiny_bert

SCRIPT = RECIPES / "glue_mrpc" / "run_mrpc.py"
DATA = SCRIPT.parent / "data"
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("tiny"), "BertForSequenceClassification", layers=2)


def arguments(model: Path, output_dir: Path, **more: object) -> list[str]:
    values: dict[str, object] = {
        "model_name_or_path": model,
        "train_file": DATA / "train.tsv",
        "validation_file": DATA / "eval.tsv",
        "output_dir": output_dir,
        "max_seq_length": 48,
        "max_train_samples": 50,
        "max_eval_samples": 21,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_steps": 0,
    }
    return flags(**(values | more))


def test_two_ranks_learn_like_one_with_twice_the_batch(tiny: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run(SCRIPT, *arguments(tiny, one, dropout=0, per_device_train_batch_size=8))
    run(SCRIPT, *arguments(tiny, two, dropout=0), ranks=2)
    assert len(losses(one)) == 12
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert [m["learning_rate"] for m in metrics(two)] == [m["learning_rate"] for m in metrics(one)]
    assert results_of(two)["after"] == results_of(one)["after"]
    assert {"accuracy", "f1"} == set(results_of(two)["before"])


def test_a_run_goes_on_exactly_from_any_checkpoint(tiny: Path, tmp_path: Path) -> None:
    command = arguments(tiny, tmp_path, save_steps=4, gradient_accumulation_steps=2, per_device_train_batch_size=2)
    run(SCRIPT, *command, ranks=2)
    expected, whole = losses(tmp_path), results_of(tmp_path)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    for step in (8, 4):
        (out, _), _ = [
            (out, err)
            for _, out, err in run(
                SCRIPT, *command, "--resume_from_checkpoint", tmp_path / f"checkpoint-{step}", ranks=2
            )
        ]
        assert f"training resumes from checkpoint-{step}." in out
        assert losses(tmp_path) == expected
        assert results_of(tmp_path)["after"] == whole["after"]
        assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1\tsentence2\na\tb\n", "line 1: expected the columns label, sentence1, sent"),
        ("label\tsentence1\tsentence2\n1\tonly one\n", "line 2: 2 fields, not 3"),
        ("label\tsentence1\tsentence2\nyes\ta\tb\n", "line 2: the label is 'yes', not 0 or 1"),
        ("label\tsentence1\tsentence2\n1\ta\t\n", "line 2: a sentence is missing"),
    ],
)
def test_wrong_files_are_one_message(tiny: Path, tmp_path: Path, text: str, message: str) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(text)
    ((code, _, err),) = ended(started(SCRIPT, *arguments(tiny, tmp_path / "o", train_file=bad)))
    assert code == 1
    assert f"{bad}, {message}" in err
    assert "Traceback" not in err


def test_mrpcs_own_files_are_read(tiny: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in (DATA / "eval.tsv").read_text().splitlines()[1:9]]
    lines = [f"{label}\t1\t2\t{first}\t{second}\n" for label, first, second in rows]
    own = tmp_path / "msr.txt"
    own.write_text("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(lines))
    run(SCRIPT, *arguments(tiny, tmp_path / "o", validation_file=own, do_train=False))
    assert "after" in results_of(tmp_path / "o")


def test_the_data_is_balanced_and_apart() -> None:
    rows: dict[str, list[list[str]]] = {
        name: [line.split("\t") for line in (DATA / f"{name}.tsv").read_text().splitlines()[1:]]
        for name in ("train", "eval")
    }
    sentences = {name: {s for row in found for s in row[1:]} for name, found in rows.items()}
    assert not sentences["train"] & sentences["eval"]
    for found in rows.values():
        assert sum(row[0] == "1" for row in found) * 2 == len(found)


def test_minilm_learns_what_says_the_same(orch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Without dropout it needs fewer epochs for it than the recipe has."""
    process = orch(
        "train",
        "glue-mrpc",
        "--ppn",
        "2",
        "--precision",
        "fp32",
        "--set",
        "save_steps=0",
        "--set",
        "dropout=0",
        "--set",
        "num_train_epochs=6",
        "--json",
        timeout=900,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    result: dict[str, Any] = json.loads(process.stdout)["result"]
    assert result["before"]["accuracy"] < 65
    assert result["after"]["accuracy"] > 70
    assert result["after"]["f1"] > 70
