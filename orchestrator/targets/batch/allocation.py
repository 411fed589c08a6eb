"""Check that a run fits the allocation that the user already holds, as a step of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.errors import PlanError
from orchestrator.model.printable import counted
from orchestrator.targets.batch.system import Allocation, BatchSystem


def check_size(system: BatchSystem, allocation: Allocation, nodes: int, ppn: int) -> None:
    """Raise PlanError if the ranks do not fit."""
    assert system.held is not None
    size, program = len(allocation.node_cpus), system.held.request
    if nodes > size:
        raise PlanError(
            f"Allocation {allocation.job} has {counted(size, 'node')}, but the run needs "
            f"{nodes}, including its spare nodes.",
            hint=f"Use fewer --nodes, or a larger `{program} --nodes={nodes}`. {system.new_job_hint}",
        )
    fewest = min(allocation.node_cpus[:nodes])
    if ppn > fewest:
        raise PlanError(
            f"Allocation {allocation.job} has {fewest} CPUs on a node, but --ppn is {ppn}.",
            hint=f"Use a smaller --ppn, or `{program} --exclusive` for whole nodes. {system.new_job_hint}",
        )


def check_options(system: BatchSystem, allocation: Allocation, options: Iterable[str]) -> None:
    """Raise PlanError for options that only a new job can have."""
    if names := ", ".join(options):
        raise PlanError(
            f"{names}: allocation {allocation.job} exists already and cannot be changed.",
            hint=f"Leave it out. {system.new_job_hint}",
        )
