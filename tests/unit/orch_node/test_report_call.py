"""`report()` of a user's script: it never ends the training, and never forges the run's course."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_node import note, report
from orch_node.protocol.events import KINDS, Other, Progress, Result, UnreadableEvent, Warned, parse

from tests.unit.hostile import JSON, NAMES, TEXTS


class Pipe:
    """The end of a rank's pipe that its wrapper reads."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        os.set_blocking(self.out, False)

    def lines(self) -> list[bytes]:
        try:
            return os.read(self.out, 1 << 20).splitlines()
        except BlockingIOError:
            return []


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe()
    monkeypatch.setenv("ORCH_EVENTS_FD", str(made.into))
    monkeypatch.setenv("RANK", "1")
    yield made
    os.close(made.out)
    os.close(made.into)


def test_what_is_right_is_sent(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    report("progress", phase="train", step=3, steps=40, loss=1.25, lr=1e-4)
    report("result", after={"em": 1.0})
    report("of-the-script", anything=[1, {"x": None}])
    report("warning", text="odd")
    found = [parse(line) for line in pipe.lines()]
    assert [type(one) for one in found] == [Progress, Result, Other, Warned]
    assert {one.rank for one in found if one} == {1}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", sorted({*KINDS} - {"progress", "result", "warning"}))
def test_names_of_orchs_own_events_are_refused(pipe: Pipe, capsys: pytest.CaptureFixture[str], name: str) -> None:
    report(name, code=0)
    report(name, code=0)
    found = [parse(line) for line in pipe.lines()]
    assert [type(one) for one in found] == [UnreadableEvent] * 2
    told = capsys.readouterr().err
    assert told.count(f"orch: report(): {name} is an event of orch's own") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"step": "three"}, "progress: step is 'three', not a number"),
        ({"loss": "1.5"}, "progress: loss is '1.5', not a number"),
        ({"step": float("nan")}, "progress: step is nan"),
        ({"step": 10**30}, "31 digits"),
        ({"phase": 7}, "progress: phase is 7, not text"),
        ({"x": object()}, "object"),
        ({"x": {(1, 2): 3}}, "keys must be"),
        ({"x": "y", "many": list(range(3000))}, "at most 4096 fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_is_wrong_is_left_out_and_told(
    pipe: Pipe, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], words: str
) -> None:
    report("progress", **fields)
    (line,) = pipe.lines()
    left = parse(line)
    assert isinstance(left, UnreadableEvent)
    assert (left.rank, left.count) == (1, 1)
    assert words in left.text
    assert words in capsys.readouterr().err


def test_the_head_of_an_event_is_orchs_own(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    report("progress", phase="train", step=1, time=12.5, rank=7, restart=3, event="exit")
    (line,) = pipe.lines()
    found = parse(line)
    assert isinstance(found, Progress)
    assert (found.rank, found.restart, found.step) == (1, 0, 1)
    assert found.time > 1e9
    assert "event, rank, restart, time" in capsys.readouterr().err


def test_the_name_may_be_given_by_name(pipe: Pipe) -> None:
    report(event="progress", phase="train", step=1)
    (line,) = pipe.lines()
    assert isinstance(parse(line), Progress)


class Tensor:
    """As much of one as report() looks at."""

    def item(self) -> float:
        return 1.5


class Hostile:
    def item(self) -> float:
        raise RuntimeError("a Tensor with 2 elements")


def test_a_number_in_a_tensor_is_a_number(pipe: Pipe) -> None:
    report("progress", phase="train", step=1, loss=Tensor())
    report("progress", phase="train", step=1, loss=Hostile())
    good, bad = map(parse, pipe.lines())
    assert isinstance(good, Progress)
    assert good.loss == 1.5
    assert isinstance(bad, UnreadableEvent)
    assert "2 elements" in bad.text


def test_a_loss_that_is_no_number_any_more_is_sent(pipe: Pipe) -> None:
    report("progress", phase="train", step=1, loss=float("nan"))
    (line,) = pipe.lines()
    found = parse(line)
    assert isinstance(found, Progress)
    assert math.isnan(found.loss or 0.0)


def test_a_closed_pipe_ends_no_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("987654", "no number", ""):
        monkeypatch.setenv("ORCH_EVENTS_FD", value)
        report("progress", phase="train", step=1)
    assert "orch: report()" in capsys.readouterr().err


def test_outside_of_orch_it_does_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ORCH_EVENTS_FD", raising=False)
    report("exit", code=object())
    assert capsys.readouterr().err == ""


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES | JSON, fields=st.dictionaries(TEXTS, JSON, max_size=4))
def test_nothing_that_a_script_reports_ends_it_or_is_damage(pipe: Pipe, name: Any, fields: dict[str, Any]) -> None:
    report(name, **fields)
    note(**fields)
    for line in pipe.lines():
        assert len(line) < 4096
        found = parse(line)
        assert found is not None
        assert found.rank == 1
        assert isinstance(found, (UnreadableEvent, Other, Progress, Result, Warned))
        assert json.loads(line)
