"""What Ansible tells of one task on one node. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.printable import one_line

RESULTS = {"runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task on one node. `state`: ok, failed or unreachable; times as Ansible notes them;
    `action`: the module."""

    node: str
    role: str
    task: str
    state: str
    changed: bool
    seconds: float
    start: str
    end: str
    result: Mapping[str, Any]
    action: str = ""


def task_result(state: str, data: Mapping[str, Any]) -> TaskResult:
    """`data`: of an event of ansible-runner. What a module said is a node's word: `result`."""
    found = data.get("res")
    result = found if isinstance(found, dict) else {}
    ignored = state == "failed" and data.get("ignore_errors")
    return TaskResult(
        node=str(data["host"]),
        role=str(data.get("role") or ""),
        task=one_line(str(data.get("task") or "")),
        state="ok" if ignored else state,
        changed=result.get("changed") is True,
        seconds=seconds(data.get("duration")),
        start=str(data.get("start") or ""),
        end=str(data.get("end") or ""),
        result=result,
        action=str(data.get("resolved_action") or data.get("task_action") or ""),
    )


def seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0
