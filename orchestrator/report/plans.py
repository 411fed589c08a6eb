"""Plan -> JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from orchestrator.plan import Plan, PutFile, StartRun
from orchestrator.report.listing import SCHEMA


def as_json(plan: Plan) -> str:
    files = {step.path: step.content for step in plan.steps if isinstance(step, PutFile)}
    start = next(step for step in plan.steps if isinstance(step, StartRun))
    return json.dumps(
        {
            "schema": SCHEMA,
            "kind": "plan",
            "run_id": plan.run_id,
            "run_dir": plan.run_dir,
            "decisions": [asdict(decision) for decision in plan.decisions],
            "layout": [asdict(place) for place in plan.layout.places],
            "files": files,
            "command": {"argv": list(start.command.argv), "env": dict(start.command.env)},
        },
        indent=1,
    )


def started_as_json(plan: Plan) -> str:
    head = {"schema": SCHEMA, "kind": "started", "run_id": plan.run_id, "run_dir": plan.run_dir}
    return json.dumps({**head, "nodes": [target.node for target in plan.nodes]}, indent=1)


def started(plan: Plan) -> str:
    return f"{plan.run_id} runs; orch attach shows it, orch stop ends it"
