"""The record of a planned run and the step that copies it to the run's nodes."""

from __future__ import annotations

import json
from dataclasses import replace

from orch_node.protocol.record import render

from orchestrator.planning.plan import Plan, PutFile


def with_record(plan: Plan) -> Plan:
    """Return the plan with a step that writes the record to run.json before the start."""
    content = json.dumps(render(plan.run)) + "\n"
    step = PutFile(nodes=plan.run.nodes, path=f"{plan.run.run_dir}/run.json", content=content)
    return replace(plan, steps=(*plan.steps[:-1], step, plan.steps[-1]))
