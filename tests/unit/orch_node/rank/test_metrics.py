"""The lines that a rank writes about its own speed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from orch_node.events import NOTED, note
from orch_node.rank import metrics


def test_metrics_ignore_notes_that_are_no_numbers(tmp_path: Path) -> None:
    rank_metrics = metrics.Metrics(tmp_path / "rank-0.metrics.jsonl")
    try:
        for value in ("many", [1], object(), 10**400, float("nan"), None):
            note(samples=value, step=value, loss=value)
            rank_metrics.write()
        note(samples=8, step=3, loss=SimpleNamespace(item=lambda: 1.5))  # a tensor, of which float() may warn
        rank_metrics.write()
    finally:
        NOTED.clear()
    *bad, good = map(json.loads, rank_metrics.path.read_text().splitlines())
    assert {(line["step"], line["samples_per_second"], line["loss"]) for line in bad} == {(0, None, None)}
    assert (repr(good["step"]), good["loss"]) == ("3", 1.5)
