"""The record of a planned run, and the step that lays it on the run's nodes."""

from __future__ import annotations

import json
from dataclasses import replace

from orch_node.protocol.record import render

from orchestrator.planning.plan import Plan, PutFile


def with_record(plan: Plan) -> Plan:
    """The plan, and the step that lays its run.json before the start."""
    content = json.dumps(render(plan.run)) + "\n"
    step = PutFile(at=plan.run.nodes, path=f"{plan.run.run_dir}/run.json", content=content)
    return replace(plan, steps=(*plan.steps[:-1], step, plan.steps[-1]))
