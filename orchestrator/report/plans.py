"""Plans as text and as JSON: what is decided, written and started."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.hosts import fold
from orchestrator.model.printable import counted, described_size, mask, one_line
from orchestrator.planning.plan import ApplyObjects, Plan, PutFile, SendFile, StartRun, SubmitScript
from orchestrator.planning.software import OF_SCRIPT
from orchestrator.report.listing import json_text
from orchestrator.runs import store

# Topics that the sentence contains or whose values are nearly always the same. All other decisions get a line.
FOLDED = (
    *("run", "stack", "nodes", "ranks", "threads of a rank", "launcher", "mpi", "backend", "preload", "network"),
    *("fabric", "pods", "image", "spare nodes"),
)
IN_BRIEF = ("launcher", "mpi", "backend", "fabric", "precision", "image")


def outline(plan: Plan) -> str:
    """Return the decisions, the files with their sizes and the commands of a plan, without secrets.

    Its length does not depend on the number of nodes.
    """
    steps = []
    for step in plan.steps:
        path = Path(step.source) if isinstance(step, SendFile) else None
        size = f": {described_size(path.stat().st_size)}" if path and path.is_file() else ""
        steps += [f"{line}{size}" for line in step.outline()]
    lines = [*plan.summary(), "", *steps]
    return mask("\n".join([*map(one_line, lines), "", "-o sh prints all files and commands in full."]), plan.secrets)


def as_json(plan: Plan) -> str:
    """Return a plan with its decisions, layout, files and command as JSON."""
    files = {step.path: step.content for step in plan.steps if isinstance(step, PutFile) and step.nodes}
    start = next((step for step in plan.steps if isinstance(step, StartRun)), None)
    objects = [document for step in plan.steps if isinstance(step, ApplyObjects) for document in step.objects]
    text = json_text(
        "plan",
        run_id=plan.run.run_id,
        run_dir=plan.run.run_dir,
        decisions=plan.decisions,
        layout=plan.layout.rank_places,
        files=files,
        command={"argv": list(start.command.argv) if start else [], "env": start.command.env if start else {}},
        **({"objects": objects} if objects else {}),
        **({"script": plan.describe()} if any(isinstance(step, SubmitScript) for step in plan.steps) else {}),
    )
    return mask(text, plan.secrets)


def started_as_json(plan: Plan) -> str:
    """Return the id, the folder and the nodes of a started run as JSON."""
    nodes = [target.node for target in plan.run.nodes]
    return json_text("started", run_id=plan.run.run_id, run_dir=plan.run.run_dir, nodes=nodes)


def started(plan: Plan, base: Path) -> str:
    """Return a line with the commands that follow or stop a started run of the folder `base` of all runs.

    Of an array it is the line about all runs, of which the first is followed.
    """
    names = [member.run.run_id for member in plan.array]
    if not names:
        arguments = store.cli_arguments(base / plan.run.run_id)
        return f"detached from {plan.run.run_id}: orch attach {arguments} shows it, orch stop {arguments} ends it"
    first, array = (store.cli_arguments(base / name) for name in (names[0], names[0].rpartition("-")[0]))
    return f"detached from {counted(len(names), 'run')}: orch attach {first} shows one, orch stop {array} ends all"


def decision_lines(plan: Plan, *, verbose: bool) -> list[str]:
    """Return all decisions with their reasons if `verbose`, otherwise a sentence and the unusual decisions."""
    if verbose:
        return plan.summary()
    decisions = [decision for decision in plan.decisions if decision.topic not in FOLDED]
    unusual = (decision.describe() for decision in decisions if decision.value != OF_SCRIPT)
    return [f"{sentence(plan)} (-v: why)", *unusual]


def sentence(plan: Plan) -> str:
    """Return a sentence such as `2 ranks on node0, 1 thread each: mpirun, ccl, bf16, stack current`."""
    numbers = sorted({placement.threads for placement in plan.layout.rank_places})
    spread = "-".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    ranks = plan.layout.world_size
    threads = f", {counted(spread, 'thread')}{' each' * (ranks > 1)}" if any(numbers) else ""
    values = {decision.topic: decision.value for decision in plan.decisions}
    brief = [values[topic] for topic in IN_BRIEF if values.get(topic, OF_SCRIPT) != OF_SCRIPT]
    stack = values.get("stack", plan.resolved.stack.value.name)
    return f"{counted(ranks, 'rank')} on {fold(plan.layout.nodes)}{threads}: {', '.join([*brief, f'stack {stack}'])}"
