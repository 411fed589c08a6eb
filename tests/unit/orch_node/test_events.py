"""`report()` of a user's script never ends the training and cannot forge events of orch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node import note, report
from orch_node.protocol.events import KINDS, Event, Other, Progress, Result, UnreadableEvent, Warned, parse

from tests.support.hostile import EVENT_NAMES, JSON, TEXTS


class Pipe:
    """A rank's pipe, as its wrapper reads it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def lines(self) -> list[bytes]:
        try:
            return os.read(self.reader, 1 << 20).splitlines()
        except BlockingIOError:
            return []

    def events(self) -> list[Event | None]:
        return [parse(line) for line in self.lines()]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    monkeypatch.setenv("ORCH_EVENTS_FD", str(pipe.writer))
    monkeypatch.setenv("RANK", "1")
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_report_sends_events_of_a_script(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    report("progress", phase="train", step=3, steps=40, loss=1.25, lr=1e-4)
    report("result", after={"em": 1.0})
    report("of-the-script", anything=[1, {"x": None}])
    report("warning", text="odd")
    report(event="progress", phase="train", step=1)
    events = pipe.events()
    assert [type(event) for event in events] == [Progress, Result, Other, Warned, Progress]
    assert {event.rank for event in events} == {1}
    assert capsys.readouterr().err == ""


def test_report_rejects_names_of_orchs_own_events(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    for name in {*KINDS} - {"progress", "result", "warning"}:
        report(name, code=0)
        assert [type(event) for event in pipe.events()] == [UnreadableEvent]
        assert f"orch: report(): {name} is an event of orch's own" in capsys.readouterr().err


def test_report_warns_about_an_invalid_event(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    for fields, reason in (
        ({"step": "three"}, "progress: step is 'three', not a number"),
        ({"step": 10**30}, "31 digits"),
        ({"x": object()}, "object"),
        ({"x": "y", "many": list(range(3000))}, "at most 4096 fit"),  # long
    ):
        report("progress", **fields)
        (event,) = pipe.events()
        assert isinstance(event, UnreadableEvent)
        assert (event.rank, event.count) == (1, 1)
        assert reason in event.text
        assert reason in capsys.readouterr().err


def test_report_ignores_fields_that_orch_sets_itself(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    report("progress", phase="train", step=1, time=12.5, rank=7, restart=3, event="exit")
    (event,) = pipe.events()
    assert isinstance(event, Progress)
    assert (event.rank, event.restart, event.step) == (1, 0, 1)
    assert event.time > 1e9
    assert "event, rank, restart, time" in capsys.readouterr().err


def test_report_reads_the_number_in_a_tensor(pipe: Pipe) -> None:
    vector = SimpleNamespace(item=Mock(side_effect=RuntimeError("a Tensor with 2 elements")))
    for loss in (SimpleNamespace(item=lambda: 1.5), float("nan"), vector):
        report("progress", phase="train", step=1, loss=loss)
    progress, diverged, unreadable = pipe.events()
    assert progress.loss == 1.5
    assert math.isnan(diverged.loss)
    assert isinstance(unreadable, UnreadableEvent)
    assert "2 elements" in unreadable.text


def test_report_needs_no_open_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("987654", "no number", ""):
        monkeypatch.setenv("ORCH_EVENTS_FD", value)
        report("progress", phase="train", step=1)
        assert "orch: report()" in capsys.readouterr().err
    monkeypatch.delenv("ORCH_EVENTS_FD")
    report("exit", code=object())
    assert capsys.readouterr().err == "", "without orch, it does nothing"


@given(name=EVENT_NAMES | JSON, fields=st.dictionaries(TEXTS, JSON, max_size=4))
def test_report_of_any_values_is_no_error_and_sends_valid_lines(pipe: Pipe, name: Any, fields: dict[str, Any]) -> None:
    report(name, **fields)
    note(**fields)
    for line in pipe.lines():
        assert len(line) < 4096
        event = parse(line)
        assert event.rank == 1
        assert isinstance(event, (UnreadableEvent, Other, Progress, Result, Warned))
        assert json.loads(line)
