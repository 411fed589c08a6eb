"""The steps of a plan done: a run of this machine or of nodes behind SSH begins."""

from __future__ import annotations

from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.runs import store
from orchestrator.targets.execute import execute
from orchestrator.targets.ssh.nodes import connection_to


def start(plan: Plan, folder: Path) -> None:
    """Record the plan and do its steps; the run lives on without this program."""
    store.create(plan, folder)
    reached = {at.node: at for step in plan.steps for at in step.nodes}
    connections = {node: connection_to(at) for node, at in reached.items()}
    try:
        execute(plan, connections)
    finally:
        for connection in connections.values():
            connection.close()
