"""Check how the runs of an array are ranked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.errors import RequestError
from orchestrator.report.comparison import is_smaller_better, rank_runs, ranking_text
from orchestrator.runs import store
from tests.support.recorded import make_run, write_events

ARRAY = "20260101-120000-qa-0000"
SCORES: tuple[dict[str, float] | None, ...] = ({"f1": 70.0}, {"f1": 90.5, "eval_loss": 0.5}, None, {"f1": 80.0})


def make_result(scores: dict[str, float]) -> dict[str, Any]:
    return {"event": "result", "rank": 0, "time": 1.0, "after": scores}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Create four runs of an array, the third one without a result, and a run of another array."""
    for number, scores in enumerate(SCORES):
        values = {"run": "x", "array": f"lr={number} ({number + 1} of 4)"}
        decisions = [{"topic": topic, "value": value, "reason": ""} for topic, value in values.items()]
        folder = make_run(tmp_path, f"{ARRAY}-{number}", decisions=decisions)
        write_events(folder, [make_result(scores)] if scores else [])
    make_run(tmp_path, f"{ARRAY}x-0")
    return tmp_path


def ranking(base: Path, result: str | None) -> list[dict[str, Any]]:
    return rank_runs(store.members(base, ARRAY), result, smallest_first=is_smaller_better(result or ""))


def test_best_run_comes_first_and_runs_without_the_result_last(base: Path) -> None:
    assert [run["run"] for run in ranking(base, None)] == [f"{ARRAY}-{number}" for number in range(4)]
    for result, order in (("f1", "1302"), ("eval_loss", "1023")):
        ranked = ranking(base, result)
        assert "".join(run["run"][-1] for run in ranked) == order
        assert ranked[0]["values"] == "lr=1"
        assert ranking_text(ranked, result).splitlines()[0].split()[3] == result.upper()
    with pytest.raises(RequestError, match="f11") as exc_info:
        ranking(base, "f11")
    assert "f1" in exc_info.value.hint


def test_command_ranks_the_runs_of_all_its_arrays(base: Path) -> None:
    array, run = f"{ARRAY}x", f"{ARRAY}-1"
    for names, count in (
        ((ARRAY,), 4),
        ((ARRAY, array), 5),
        ((ARRAY, f"{array}-0"), 5),
        ((run, array, "--by", "f1"), 2),
    ):
        result = CliRunner().invoke(make_app(), ["runs", "--runs-dir", str(base), "compare", *names, "--json"])
        assert len(json.loads(result.stdout)["runs"]) == count, result.output


def test_run_whose_result_or_loss_is_not_a_number_is_not_the_best(base: Path) -> None:
    write_events(base / f"{ARRAY}-0", [make_result({"f1": float("nan"), "eval_loss": float("nan")})])
    for name in ("f1", "eval_loss"):
        assert ranking(base, name)[0]["run"] == f"{ARRAY}-1"
    for number, last_loss in enumerate((float("nan"), 0.5)):
        losses = ({"event": "progress", "rank": 0, "loss": loss} for loss in (0.1, last_loss))
        write_events(base / f"{ARRAY}-{number}", losses)
    assert [run["run"][-1] for run in ranking(base, "loss")] == list("1023")


def test_run_whose_result_is_infinite_is_not_the_best(base: Path) -> None:
    write_events(base / f"{ARRAY}-0", [make_result({"f1": float("inf"), "eval_loss": float("-inf")})])
    assert [ranking(base, name)[0]["run"] for name in ("f1", "eval_loss")] == [f"{ARRAY}-1"] * 2


def test_order_of_a_result_follows_from_its_name() -> None:
    smaller = ("loss", "eval_Loss", "MSELoss", "RMSE", "val_mse", "val/wer", "cer", "Perplexity", "train_seconds")
    larger = ("f1", "accuracy", "answer_score", "samples_per_second", "Lifetimes", "exact_match", "power", "timed_f1")
    assert [name for name in smaller if not is_smaller_better(name)] == []
    assert [name for name in larger if is_smaller_better(name)] == []


def test_order_is_printed_and_can_be_changed(base: Path) -> None:
    orders = {}
    for option in ((), ("--ascending",), ("--descending",)):
        arguments = ["runs", "--runs-dir", str(base), "compare", ARRAY, "--by", "f1", *option, "--json"]
        result = CliRunner().invoke(make_app(), arguments)
        runs = [run["run"][-1] for run in json.loads(result.stdout)["runs"]]
        orders[option] = ("".join(runs), result.stderr)
    assert orders[()] == ("1302", "the largest f1 comes first (--ascending: last)\n")
    assert orders["--ascending",] == ("0312", "")
    assert orders["--descending",] == ("1302", "")
