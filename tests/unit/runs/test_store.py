"""Which recorded run a name stands for."""

from __future__ import annotations

from pathlib import Path

from orchestrator.operations.runs import live_runs
from orchestrator.runs import store
from tests.recorded import ended, make_run, write

FIRST, SECOND, THIRD = (f"2026010{day}-120000-qa-0000" for day in (1, 2, 3))


def test_last_is_never_a_refused_run(tmp_path: Path) -> None:
    make_run(tmp_path, FIRST, created=1.0)
    refused = make_run(tmp_path, SECOND, created=2.0)
    write(refused / "outcome.json", ended("refused"))
    assert store.find(tmp_path, "last").id == FIRST
    assert store.find(tmp_path, SECOND).id == SECOND


def test_live_runs_are_those_that_have_not_ended(tmp_path: Path) -> None:
    for second, run in enumerate((FIRST, SECOND, THIRD)):
        folder = make_run(tmp_path, run, created=float(second))
        if run != THIRD:
            (folder / "outcome.json").unlink()
    assert live_runs(tmp_path, None) == (FIRST, SECOND)
