"""Results of Ansible's tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.printable import one_line

RESULTS = {"runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one task on one node."""

    node: str
    role: str
    task: str
    state: str  # ok, failed or unreachable
    changed: bool
    seconds: float
    start: str  # ISO 8601
    end: str
    result: Mapping[str, Any]  # of the module: untrusted, because it comes from the node
    action: str = ""  # the module


def task_result(state: str, data: Mapping[str, Any]) -> TaskResult:
    """Return the result that an event of ansible-runner describes.

    Args:
        state: ok, failed or unreachable, by the kind of the event.
        data: `event_data` of the event.
    """
    result = data.get("res")
    duration = data.get("duration")
    ignored = state == "failed" and data.get("ignore_errors")
    return TaskResult(
        node=str(data["host"]),
        role=str(data.get("role") or ""),
        task=one_line(str(data.get("task") or "")),
        state="ok" if ignored else state,
        changed=isinstance(result, dict) and result.get("changed") is True,
        seconds=duration if isinstance(duration, float) and math.isfinite(duration) else 0.0,
        start=str(data.get("start") or ""),
        end=str(data.get("end") or ""),
        result=result if isinstance(result, dict) else {},
        action=str(data.get("resolved_action") or data.get("task_action") or ""),
    )
