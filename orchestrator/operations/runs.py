"""`orch runs`: read what runs have left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import runs
from orchestrator.operations.find import ask_inventory, is_cluster
from orchestrator.operations.watch import renewed
from orchestrator.report.outcome import Outcome, outcome_of


def rows(base: Path) -> list[dict[str, Any]]:
    return [
        {
            "id": run.id,
            "state": run.state,
            "recipe": run.plan["recipe"],
            "ranks": len(run.plan["layout"]),
            "backend": run.plan["backend"],
            "precision": run.plan["precision"],
            "nodes": list(run.nodes),
            "progress": told(run.progress()),
            "started_by": run.plan.get("started_by", ""),
            "created": run.plan["created"],
            "folder": str(run.folder),
        }
        for run in runs.list_runs(base)
    ]


def rows_of_inventory(inventory: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The runs that the nodes of an inventory know, oldest first, and which nodes did not answer.

    The same for every controller; `state` is unknown where node0 did not answer.
    """
    if is_cluster(inventory):
        from orchestrator.operations.kube import find as kube

        return kube.rows(inventory), []
    found, silent = ask_inventory(inventory)
    ordered = sorted(found.values(), key=lambda one: (one.card["created"], one.card["run_id"]))
    rows = [
        {
            "id": one.card["run_id"],
            "state": one.state or "unknown",
            "recipe": one.card["recipe"],
            "ranks": len(one.card["layout"]),
            "backend": one.card["backend"],
            "precision": one.card["precision"],
            "nodes": [node["node"] for node in one.card["nodes"]],
            "progress": told(one.progress),
            "started_by": one.card["started_by"],
            "created": one.card["created"],
            "folder": one.card["run_dir"],
        }
        for one in ordered
    ]
    return rows, [f"{said.node}: {said.problem}" for said in silent]


def told(progress: dict[str, Any] | None) -> str:
    if progress is None or progress.get("step") is None:
        return ""
    return f"{progress['phase']} {progress['step']}/{progress.get('steps') or '?'}"


def outcome(base: Path, name: str, inventory: str | None, tell: Callable[[str], None]) -> Outcome:
    return outcome_of(renewed(base, name, inventory, tell))
