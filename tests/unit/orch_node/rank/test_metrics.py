"""What must not end the thread that measures a rank and sends its heartbeats."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from orch_node.events import NOTED, note
from orch_node.rank import metrics

TORCH = SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False))


@pytest.fixture
def measured(tmp_path: Path) -> metrics.Metrics:
    (tmp_path / "ranks").mkdir()
    return metrics.Metrics(TORCH, tmp_path, rank=0)


def test_too_many_open_files_lose_one_line(measured: metrics.Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: os.stat("/missing"))
        measured.write()
    assert not measured.path.exists()
    measured.write()
    assert len(measured.path.read_text().splitlines()) == 1


def test_notes_that_are_no_numbers_or_cannot_be_read_are_left_out(measured: metrics.Metrics) -> None:
    unreadable = SimpleNamespace(item=Mock(side_effect=KeyError("loss")))
    try:
        for value in ("many", [1], object(), unreadable, 10**400, float("nan"), None):
            note(samples=value, step=value, loss=value)
            measured.write()
        note(samples=8, step=3, loss=SimpleNamespace(item=lambda: 1.5))  # a tensor, of which float() may warn
        measured.write()
    finally:
        NOTED.clear()
    *bad, good = map(json.loads, measured.path.read_text().splitlines())
    assert {(line["step"], line["samples_per_second"], line["loss"]) for line in bad} == {(0, None, None)}
    assert (repr(good["step"]), good["loss"]) == ("3", 1.5)


@pytest.mark.parametrize(
    ("before", "after", "is_new"),
    [({}, {"weight": {"step": 1}}, True), ({"weight": {"step": 7}}, {"weight": {"step": 8}}, False), ({}, {}, False)],
    ids=["new", "from-checkpoint", "without-state"],
)
def test_first_step_tells_a_new_optimizer_from_one_with_a_state(
    measured: metrics.Metrics,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    after: dict[str, Any],
    is_new: bool,
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(metrics, "send", sent.append)
    monkeypatch.setattr(TORCH, "initial_seed", lambda: 0, raising=False)
    for state in ({"before": before, "after": after}, {"before": after, "after": after}):
        measured.before_step(SimpleNamespace(state=state["before"]))
        measured.add_step(SimpleNamespace(state=state["after"]))
    assert [event.new_optimizer for event in sent] == [is_new], "only the first step is reported"
