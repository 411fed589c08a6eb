"""Preempt an attempt: its result when no checkpoint is written, and the time limit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orch_node.protocol.agent import PreemptedRanks
from orch_node.supervisor.preemption import PreemptionMonitor

TRACKER: Any = SimpleNamespace(any_preempted=lambda: False, checkpoints={})


def make_monitor(folder: Path, responses: dict[str, PreemptedRanks]) -> PreemptionMonitor:
    """Return a monitor of a preempted attempt whose agents respond with these ranks."""
    agents: Any = SimpleNamespace(request=lambda question, expected, seconds: responses)
    return PreemptionMonitor(folder, agents, lambda: True, lambda event: None)


def test_time_for_a_checkpoint_does_not_pass_while_the_job_is_suspended(tmp_path: Path) -> None:
    monitor = make_monitor(tmp_path, {"n1": PreemptedRanks(ranks=(0,))})
    assert monitor.poll(TRACKER) is None
    monitor.requested_at -= 600.0  # as if the process had been stopped for ten minutes
    monitor.add_suspension(600.0)
    assert monitor.poll(TRACKER) is None
