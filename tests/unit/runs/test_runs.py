from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_node.protocol.events import Event, Launched, Progress, ScriptEnded

from orchestrator.errors import RequestError
from orchestrator.operations.runs import list_recorded_runs
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import resume, store
from orchestrator.runs.outcome import untrained_notes
from orchestrator.runs.store import load
from tests.support.recorded import PRECISION_EVENT, make_placement, make_plan, make_run


def test_an_event_that_is_on_its_way_is_none_yet(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(make_plan(tmp_path, [make_placement(rank, 3) for rank in range(3)])))
    run = load(tmp_path)
    assert run.events() == []
    lines = [json.dumps({"event": "joined", "rank": rank}) for rank in range(3)]
    path = tmp_path / "events.jsonl"
    path.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:9]}")
    assert [event.rank for event in run.events()] == [0, 1]
    path.write_text("\n".join([*lines, ""]))
    assert [event.rank for event in run.events()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("events", "is_noted"),
    [
        pytest.param([ScriptEnded(rank=0, trained=False)], True, id="untrained"),
        pytest.param([ScriptEnded(rank=0, trained=False), ScriptEnded(rank=1)], False, id="one-trained"),
        pytest.param([ScriptEnded(rank=0), Launched(), ScriptEnded(trained=False)], True, id="anew"),
        pytest.param([Progress(step=3.0), ScriptEnded(trained=False)], False, id="progress"),
        pytest.param([], False, id="older-ranks"),
    ],
)
def test_a_run_without_a_training_step_is_noted(events: list[Event], is_noted: bool) -> None:
    assert bool(untrained_notes("done", events)) == is_noted
    assert untrained_notes("failed", events) == []


def test_a_run_is_found_by_a_unique_prefix(tmp_path: Path) -> None:
    first, second = "20260101-120000-qa-0000", "20260102-120000-qa-0000"
    for run in (first, second):
        make_run(tmp_path, run)
    assert store.find(tmp_path, "20260102").id == second
    with pytest.raises(RequestError, match=r"2 runs .* begin with '2026'") as exc_info:
        store.find(tmp_path, "2026")
    assert second in exc_info.value.hint


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param("auto", "done", id="auto"),
        pytest.param("bf16", "done", id="the same"),
        pytest.param("fp32", "", id="another"),
    ],
)
@pytest.mark.parametrize("recorded", ["bf16", "auto"])
def test_a_run_in_another_precision_is_not_the_requested_one(
    tmp_path: Path, recorded: str, requested: str, expected: str
) -> None:
    folder = make_run(tmp_path, "done", precision=recorded, key="k")
    if recorded == "auto":
        with (folder / "events.jsonl").open("a") as events:
            events.write(json.dumps(PRECISION_EVENT) + "\n")
    request = TrainRequest(recipe="qa", precision=requested, runs_dir=str(tmp_path))
    assert resume.done(request, "k") == expected


@pytest.mark.parametrize(("chosen", "expected"), [(True, "bf16"), (False, "auto")])
def test_the_list_of_runs_has_the_precision_that_the_ranks_chose(tmp_path: Path, chosen: bool, expected: str) -> None:
    folder = make_run(tmp_path, "run", precision="auto")
    if chosen:
        with (folder / "events.jsonl").open("a") as events:
            events.write(json.dumps(PRECISION_EVENT) + "\n")
    (row,) = list_recorded_runs(tmp_path, None).rows
    assert row.precision == expected
