"""The decisions made for a run, as one sentence or line by line with the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.hosts import fold
from orchestrator.model.printable import counted
from orchestrator.planning.plan import Plan
from orchestrator.planning.software import OF_SCRIPT

# Topics that the sentence contains or whose values are nearly always the same. All other decisions get a line.
FOLDED = {
    "run",
    "stack",
    "nodes",
    "ranks",
    "threads of a rank",
    "launcher",
    "mpi",
    "backend",
    "preload",
    "network",
    "fabric",
    "pods",
    "image",
    "spare nodes",
}
IN_BRIEF = ("launcher", "mpi", "backend", "fabric", "precision", "image")


def lines(plan: Plan, *, verbose: bool) -> list[str]:
    """Return all decisions with their reasons if `verbose`, otherwise a sentence and the unusual decisions."""
    if verbose:
        return plan.summary()
    unusual = [
        decision.describe()
        for decision in plan.decisions
        if decision.topic not in FOLDED and decision.value != OF_SCRIPT
    ]
    return [f"{sentence(plan)} (-v: why)", *unusual]


def sentence(plan: Plan) -> str:
    """Return a sentence such as `2 ranks on node0, 1 thread each: mpirun, ccl, bf16, stack current`."""
    numbers = {placement.threads for placement in plan.layout.rank_places}
    ranks = plan.layout.world_size
    each = " each" * (ranks > 1)
    threads = f", {counted(spread(numbers), 'thread')}{each}" if any(numbers) else ""
    location = f"{counted(str(ranks), 'rank')} on {fold(plan.layout.nodes)}{threads}"
    return f"{location}: {', '.join(in_brief(plan))}"


def in_brief(plan: Plan) -> Iterator[str]:
    """Yield the decisions that the sentence lists after the colon."""
    values = {decision.topic: decision.value for decision in plan.decisions}
    yield from (values[topic] for topic in IN_BRIEF if values.get(topic, OF_SCRIPT) != OF_SCRIPT)
    yield f"stack {values.get('stack', plan.origin.stack)}"


def spread(numbers: set[int]) -> str:
    """Return the smallest and the largest number as a range, or the number that all share."""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least}-{most}"
