"""`orch train`: decide, do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import check_refused
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import store
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle


def plan(request: TrainRequest) -> Plan:
    """Read the files, decide. Touches no host. Raises PlanError for what the target refuses."""
    target = registry.named(request.on)
    check_refused(request, target.refuses)
    return target.plan(request)


def left_out(request: TrainRequest) -> Iterator[str]:
    """Runs that cannot be read, and so cannot be carried on, in words."""
    if not request.fresh:
        yield from (one.describe() for one in store.recorded(Path(request.runs_dir)).damaged)


def start(plan: Plan, folder: Path) -> RunHandle:
    """Record the plan and do its steps; -> the run, to be watched. It lives on without that."""
    return registry.named(plan.run.target).start(plan, folder)
