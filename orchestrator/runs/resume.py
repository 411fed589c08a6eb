"""A request that carries on an unfinished run of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orch_node.protocol.precision import AUTO

from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.runs import store
from orchestrator.runs.outcome import precision_of


def plan_or_resume(request: TrainRequest, decide: Callable[[Resume | None], Plan]) -> Plan:
    """The plan of a new run, or of one that goes on where an earlier one of the same key ended."""
    first = decide(None)
    resume = resumed(request, first.run.key)
    return decide(resume) if resume else first


def done(request: TrainRequest, key: str) -> str:
    """Return the id of the run of this key that is done; empty if all is to begin anew.

    The key does not contain the precision: a run in another one than requested does not count.
    """
    run = None if request.fresh else store.done(Path(request.runs_dir).absolute(), key)
    return run.id if run and request.precision in (AUTO, precision_of(run)) else ""


def resumed(request: TrainRequest, key: str) -> Resume | None:
    """The unfinished run of this key; none where all is to begin anew."""
    return None if request.fresh else store.unfinished(Path(request.runs_dir).absolute(), key)
