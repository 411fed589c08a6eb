"""`orch train`: decide, do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch_node.standalone import facts

from orchestrator.errors import RequestError
from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import check_refused
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import store
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle


def plan(request: TrainRequest) -> Plan:
    """Read the files, decide. Touches no host. Raises PlanError for what the target refuses."""
    check_cpu_isa()
    target = registry.named(request.on)
    check_refused(request, target.refuses)
    return target.plan(request)


def check_cpu_isa() -> None:
    """Raise RequestError for an unknown ORCH_CPU_ISA, also if this machine is no node of the run."""
    try:
        facts.isa_variables()
    except ValueError as error:
        raise RequestError(str(error), hint=f"Unset {facts.CPU_ISA}, or lower it.") from None


def unreadable_runs(request: TrainRequest) -> Iterator[str]:
    """Yield why runs are not resumed: they are damaged, or may still run on another host."""
    if request.fresh:
        return
    recorded = store.recorded(Path(request.runs_dir))
    yield from (damaged.describe() for damaged in recorded.damaged)
    for run in recorded.runs:
        if run.state == "unknown":
            yield f"{run.id} may still run on a host not visible here: it is not resumed"


def start(plan: Plan, folder: Path) -> RunHandle:
    """Record the plan and do its steps; -> the run, to be watched. It lives on without that."""
    return registry.named(plan.run.target).start(plan, folder)
