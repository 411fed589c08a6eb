"""What was decided for a run, on the screen: in a sentence, or line by line with the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.hostlist import fold
from orchestrator.planning.plan import Plan
from orchestrator.planning.precision import OF_SCRIPT

# What the sentence says, and what is as it nearly always is. All other decisions have their lines.
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
    "docker",
    "container",
    "spare nodes",
}
IN_BRIEF = ("launcher", "mpi", "backend", "fabric", "precision", "docker", "container", "image")


def lines(plan: Plan, *, verbose: bool) -> list[str]:
    """All with their reasons if `verbose`; else the sentence, and what is out of the ordinary."""
    if verbose:
        return plan.summary()
    told = [
        decision.describe()
        for decision in plan.decisions
        if decision.topic not in FOLDED and decision.value != OF_SCRIPT
    ]
    return [f"run: {plan.run.run_id}", f"{sentence(plan)} (-v: why)", *told]


def sentence(plan: Plan) -> str:
    """Such as: 2 ranks on node0, 1 thread each: mpirun, ccl, bf16, stack current."""
    numbers = {placement.threads for placement in plan.layout.places}
    ranks = plan.layout.world_size
    each = " each" * (ranks > 1)
    threads = f", {counted(spread(numbers), 'thread')}{each}" if any(numbers) else ""
    location = f"{counted(str(ranks), 'rank')} on {fold(plan.layout.nodes)}{threads}"
    return f"{location}: {', '.join(in_brief(plan))}"


def in_brief(plan: Plan) -> Iterator[str]:
    values = {one.topic: one.value for one in plan.decisions}
    yield from (values[topic] for topic in IN_BRIEF if values.get(topic, OF_SCRIPT) != OF_SCRIPT)
    yield f"stack {values.get('stack', plan.origin.stack)}"


def spread(numbers: set[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least}-{most}"


def counted(number: str, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != '1')}"
