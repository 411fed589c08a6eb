"""Decisions whether a request resumes an unfinished run or finds its run done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orch_node.protocol.precision import AUTO

from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.runs import store


def plan_or_resume(request: TrainRequest, decide: Callable[[Resume | None], Plan]) -> Plan:
    """Return the plan of a new run, or of one that resumes an unfinished run with the same key."""
    first = decide(None)
    resume = resumed(request, first.run.key)
    return decide(resume) if resume else first


def done(request: TrainRequest, key: str) -> str:
    """Return the id of the run with this key if it is done, or an empty string.

    The key does not contain the precision, so a run in another precision than the requested one does
    not count. With `fresh`, no run counts.
    """
    from orchestrator.runs.outcome import precision_of

    run = None if request.fresh else store.done(Path(request.runs_dir).absolute(), key)
    return run.id if run and request.precision in (AUTO, precision_of(run)) else ""


def resumed(request: TrainRequest, key: str) -> Resume | None:
    """Return the unfinished run with this key, or None if there is none or `fresh` is requested."""
    return None if request.fresh else store.unfinished(Path(request.runs_dir).absolute(), key)
