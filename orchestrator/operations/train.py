"""`orch train`: decide, do."""

from __future__ import annotations

from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import check_refused
from orchestrator.planning.request import TrainRequest
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle


def plan(request: TrainRequest) -> Plan:
    """Read the files, decide. Touches no host. Raises PlanError for what the target refuses."""
    target = registry.named(request.on)
    check_refused(request, target.refuses)
    return target.plan(request)


def start(plan: Plan, folder: Path) -> RunHandle:
    """Record the plan and do its steps; -> the run, to be watched. It lives on without that."""
    return registry.named(plan.run.target).start(plan, folder)
