"""A start of which nothing is heard: what is told of it, and when it is given up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.protocol.events import Started
from orch_node.supervisor.startup_monitor import NO_CHILDREN_SECONDS, REPORT_SECONDS, StartupMonitor

from tests.unit.orch_node.test_on_nodes import tracker as tracker_of

SAID = "srun: error: n2: task 1: Exited with exit code 1\n"
WAIT = "import sys; print(flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"


@pytest.fixture(params=[WAIT, PARENT], ids=["childless", "parent"])
def launcher(request: pytest.FixtureRequest) -> Iterator[tuple[int, bool]]:
    """A process that waits, and whether it has a child."""
    words = [sys.executable, "-c", request.param]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the one that waits is there
    yield process.pid, request.param == PARENT
    process.communicate()


def test_a_launcher_without_a_process_can_start_no_rank(launcher: tuple[int, bool], tmp_path: Path) -> None:
    pid, has_child = launcher
    log = tmp_path / "launcher.log"
    log.write_text(SAID)
    startup_monitor = StartupMonitor(pid, "/venv/bin/mpiexec.hydra", log)
    tracker = tracker_of("node0", "node1")
    assert startup_monitor.problem(tracker, NO_CHILDREN_SECONDS - 1) == "", "it may be about to"
    problem = startup_monitor.problem(tracker, 1 + NO_CHILDREN_SECONDS)
    assert bool(problem) is not has_child
    if problem:
        assert problem.endswith(f"the launcher's last line: {SAID.strip()}")
    startup_monitor.checked_at = -9.0
    tracker.add_event(Started(rank=0, node="node0", pid=1, wrapper=1, host="node0"), 0.0)
    assert startup_monitor.problem(tracker, 1 + NO_CHILDREN_SECONDS) == "", "its proxies may have ended"


def test_torchrun_needs_no_process_to_start_ranks(tmp_path: Path) -> None:
    startup_monitor = StartupMonitor(0, "/venv/bin/python", tmp_path / "launcher.log")
    assert startup_monitor.problem(tracker_of("node0", "node1"), 1000.0) == ""


def test_what_is_waited_for_is_told_once(tmp_path: Path) -> None:
    startup_monitor = StartupMonitor(0, "mpiexec", tmp_path / "launcher.log")
    tracker = tracker_of("node0", "node1")
    assert startup_monitor.news(tracker, REPORT_SECONDS - 1) == ""
    text = startup_monitor.news(tracker, REPORT_SECONDS)
    assert text.startswith("no progress for 20 s: 0 of 2 ranks have started, 0 of 2 ranks joined")
    assert "missing: node0 rank" in text
    assert startup_monitor.news(tracker, REPORT_SECONDS + 60) == ""
