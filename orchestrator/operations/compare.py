"""`orch runs compare`: two recorded runs beside each other."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.comparison import Comparison, Side, compare
from orchestrator.runs import store
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of


def comparison(base: Path, a: str, b: str) -> Comparison:
    """Raises RequestError for a run that there is not."""
    return compare(side(base, a), side(base, b))


def side(base: Path, name: str) -> Side:
    run = store.find(base, name)
    return Side(run=run, outcome=outcome_of(run), measured=measures(run))
