"""What Ansible tells of one task on one node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RESULTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task on one node. `state`: ok, failed or unreachable; times as Ansible notes them."""

    node: str
    role: str
    task: str
    state: str
    changed: bool
    seconds: float
    start: str
    end: str
    result: Mapping[str, Any]


def task_result(state: str, data: Mapping[str, Any]) -> TaskResult:
    result = data.get("res") or {}
    ignored = state == "failed" and data.get("ignore_errors")
    return TaskResult(
        node=str(data["host"]),
        role=str(data.get("role", "")),
        task=str(data.get("task", "")),
        state="ok" if ignored else state,
        changed=bool(result.get("changed")),
        seconds=float(data.get("duration") or 0),
        start=str(data.get("start", "")),
        end=str(data.get("end", "")),
        result=result,
    )
