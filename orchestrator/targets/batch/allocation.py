"""Run inside an allocation that the user already holds, as a step of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orch_node.protocol.slurm import cpu_counts

from orchestrator.errors import PlanError
from orchestrator.model.printable import counted

HELD, NEW = "held", "new"  # The values of `--slurm allocation=`.
NEW_JOB_HINT = f"`--slurm allocation={NEW}` submits a new job."


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A running job, as the environment of its processes describes it.

    Attributes:
        job: the id of the job.
        node_cpus: the job's CPUs on each of its nodes.
    """

    job: str
    node_cpus: tuple[int, ...]

    def check(self, nodes: int, ppn: int) -> None:
        """Raise PlanError if the ranks do not fit."""
        size = len(self.node_cpus)
        if nodes > size:
            raise PlanError(
                f"Allocation {self.job} has {counted(size, 'node')}, but the run needs "
                f"{nodes}, including its spare nodes.",
                hint=f"Use fewer --nodes, or a larger `salloc --nodes={nodes}`. {NEW_JOB_HINT}",
            )
        fewest = min(self.node_cpus[:nodes])
        if ppn > fewest:
            raise PlanError(
                f"Allocation {self.job} has {fewest} CPUs on a node, but --ppn is {ppn}.",
                hint=f"Use a smaller --ppn, or `salloc --exclusive` for whole nodes. {NEW_JOB_HINT}",
            )

    def check_options(self, options: Iterable[str]) -> None:
        """Raise PlanError for options that only a new job can have."""
        if names := ", ".join(options):
            raise PlanError(
                f"{names}: allocation {self.job} exists already and cannot be changed.",
                hint=f"Leave it out. {NEW_JOB_HINT}",
            )


def held_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in which this program runs, or None if it runs in none."""
    job = environ.get("SLURM_JOB_ID", "")
    counts = cpu_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if not (job.isascii() and job.isdigit() and counts and "SLURM_JOB_NODELIST" in environ):
        return None
    return Allocation(job=job, node_cpus=tuple(counts))
