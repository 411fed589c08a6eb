"""`orch runs compare`: two recorded runs beside each other."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.comparison import Comparison, Side, compare
from orchestrator.runs import store
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.interface import Tell, silent


def comparison(base: Path, a: str, b: str, tell: Tell = silent) -> Comparison:
    """`tell` gets warnings. Raises RequestError for a run that there is not."""
    return compare(side(base, a, tell), side(base, b, silent))


def side(base: Path, name: str, tell: Tell) -> Side:
    run = store.find(base, name, tell)
    return Side(run=run, outcome=outcome_of(run), measured=measures(run))
