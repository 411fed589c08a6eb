"""A request that carries on an unfinished run of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.runs import store


def plan_or_resume(request: TrainRequest, decide: Callable[[Resume | None], Plan]) -> Plan:
    """The plan of a new run, or of one that goes on where an earlier one of the same key ended."""
    first = decide(None)
    if request.fresh:
        return first
    resume = store.unfinished(Path(request.runs_dir).absolute(), first.run.key)
    return decide(resume) if resume else first
