"""Check the report about a run that was stopped."""

from __future__ import annotations

from orchestrator.report import cleanup
from orchestrator.runs.cleanup import CleanupReport


def test_stop_of_a_run_without_nodes_prints_no_table() -> None:
    result = cleanup.text(CleanupReport(run_id="20260101-120000-own-1a2b", seconds=0.1, nodes=()))
    assert "none" not in result
    assert "nothing was running" in result
