"""The evidence that the kernel killed a process because memory ran out."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.rank import oom


def test_oom_kill_is_found_in_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 0\n")
    monkeypatch.setattr(oom, "cgroup_files", lambda: [events])
    monkeypatch.setattr(oom, "kernel_log", lambda: [])
    detector = oom.OomDetector()
    assert detector.find_evidence(1) is None
    events.write_text("oom 1\noom_kill 1\n")
    assert detector.find_evidence(1) == f"oom_kill in {events} rose from 0 to 1"
