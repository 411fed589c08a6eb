"""Plans as JSON, and their outline: what is decided, written and started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from orchestrator.model.printable import described_size, mask, one_line
from orchestrator.planning.plan import ApplyObjects, Plan, PutFile, SendFile, StartRun, SubmitScript
from orchestrator.report.listing import SCHEMA


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
    scripts = any(isinstance(step, SubmitScript) for step in plan.steps)
    text = json.dumps(
        {
            "schema": SCHEMA,
            "kind": "plan",
            "run_id": plan.run.run_id,
            "run_dir": plan.run.run_dir,
            "decisions": [asdict(decision) for decision in plan.decisions],
            "layout": [asdict(placement) for placement in plan.layout.rank_places],
            "files": files,
            "command": {
                "argv": list(start.command.argv) if start else [],
                "env": dict(start.command.env) if start else {},
            },
            **({"objects": objects} if objects else {}),
            **({"script": plan.describe()} if scripts else {}),
        },
        indent=1,
    )
    return mask(text, plan.secrets)


def started_as_json(plan: Plan) -> str:
    """Return the id, the folder and the nodes of a started run as JSON."""
    head = {"schema": SCHEMA, "kind": "started", "run_id": plan.run.run_id, "run_dir": plan.run.run_dir}
    return json.dumps({**head, "nodes": [target.node for target in plan.run.nodes]}, indent=1)


def started(plan: Plan) -> str:
    """Return a line with the commands that follow or stop a started run."""
    return f"detached from {plan.run.run_id}: orch attach shows it, orch stop ends it"
