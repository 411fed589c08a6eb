"""Decisions whether a request resumes an unfinished run or finds its run done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.runs import store


def plan_or_resume(request: TrainRequest, decide: Callable[[Resume | None], Plan]) -> Plan:
    """Return the plan of a new run, or of one that resumes an unfinished run with the same key."""
    first = decide(None)
    resume = resumed(request, first.run.key)
    return decide(resume) if resume else first


def resumed(request: TrainRequest, key: str) -> Resume | None:
    """Return the unfinished run with this key, or None if there is none or `fresh` is requested."""
    return None if request.fresh else store.unfinished(Path(request.runs_dir).absolute(), key)
