"""The lines that a rank writes about its own speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_node.events import NOTED, note
from orch_node.rank import metrics


@pytest.mark.parametrize(
    "value", ["many", [1], object(), 10**400, float("nan"), None], ids=["text", "list", "object", "huge", "nan", "none"]
)
def test_metrics_ignore_notes_that_are_no_numbers(tmp_path: Path, value: object) -> None:
    rank_metrics = metrics.Metrics(tmp_path / "rank-0.metrics.jsonl")
    note(samples=value, step=value, loss=value)
    try:
        rank_metrics.write()
        note(samples=8, step=3, loss=1.5)
        rank_metrics.write()
    finally:
        NOTED.clear()
    bad, good = map(json.loads, rank_metrics.path.read_text().splitlines())
    assert (bad["step"], bad["samples_per_second"], bad["loss"]) == (0, None, None)
    assert (good["step"], good["loss"]) == (3, 1.5)
    assert isinstance(good["step"], int)
