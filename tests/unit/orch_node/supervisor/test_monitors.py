"""Report a start without progress, and give it up when no rank can start any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.protocol.events import Started
from orch_node.supervisor.launcher import LauncherLog
from orch_node.supervisor.monitors import NO_CHILDREN_SECONDS, StartupMonitor
from orch_node.supervisor.rank_tracker import RankTracker

from tests.support.layouts import make_layout

SRUN_ERROR = "srun: error: n2: task 1: Exited with exit code 1\n"
WAIT = "import sys; print(flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"


@pytest.fixture(params=[WAIT, PARENT], ids=["childless", "parent"])
def launcher(request: pytest.FixtureRequest) -> Iterator[tuple[int, bool]]:
    """Yield the id of a waiting process, and whether it has a child."""
    command = [sys.executable, "-c", request.param]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()  # The innermost process runs.
    yield process.pid, request.param == PARENT
    process.communicate()


def test_startup_fails_when_the_launcher_has_no_process(launcher: tuple[int, bool], tmp_path: Path) -> None:
    pid, has_child = launcher
    layout = make_layout("node0", "node1")
    tracker, log = RankTracker(layout, 0.0), LauncherLog(tmp_path / "launcher.log", layout)
    monitor = StartupMonitor(pid, "/venv/bin/mpiexec.hydra", log)
    (tmp_path / "launcher.log").write_text(SRUN_ERROR)
    for seconds in (20.0, NO_CHILDREN_SECONDS - 1):
        assert monitor.problem(tracker, seconds) == "", "it may be about to start one, after its name servers"
    problem = monitor.problem(tracker, 1 + NO_CHILDREN_SECONDS)
    assert bool(problem) is not has_child
    assert has_child or problem.endswith(f"the launcher reports: {SRUN_ERROR.strip()}")
    assert StartupMonitor(0, "/venv/bin/python", log).problem(tracker, 1000.0) == "", "torchrun needs no process"
    monitor.checked_at = -9.0
    tracker.add_event(Started(rank=0, node="node0", pid=1, wrapper=1, host="node0"), 0.0)
    assert monitor.problem(tracker, 1 + NO_CHILDREN_SECONDS) == "", "its proxies may have ended"
