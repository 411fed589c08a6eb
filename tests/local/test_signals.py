"""Check that signals reach the intended process, and none that has received its number since."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import machine

from orchestrator.runs.follow import LocalRun
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.mirror import Mirror
from tests.support.waiting import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def start_supervisor(run: Path) -> subprocess.Popen[bytes]:
    """Start a process with the command line of a supervisor."""
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, "supervise", str(run), "--", "x"])
    command = Path(f"/proc/{process.pid}/cmdline")
    wait_until(lambda: b"supervise" in command.read_bytes(), "its arguments")
    return process


def test_handle_signals_only_its_own_process(sleeper: subprocess.Popen[bytes]) -> None:
    start = machine.start_time(sleeper.pid)
    assert not machine.send_signal(sleeper.pid, start - 1, signal.SIGKILL)
    assert machine.send_signal(sleeper.pid, start, signal.SIGTERM)
    sleeper.wait()
    assert not machine.send_signal(sleeper.pid, start, 0)
    assert machine.start_time(sleeper.pid) is None, "there is no such process"


def test_ctrl_c_ends_only_a_remote_supervisor(sshd: str, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Use numbers of other processes, because the recorded number of a supervisor may be outdated."""
    run = tmp_path / "runs" / "a run"
    mirror = Mirror(Ssh("far", sshd), str(run), tmp_path / "copy", ranks=1)
    with start_supervisor(run.with_name("a run-2")) as other_supervisor, start_supervisor(run) as supervisor:
        for process in (sleeper, other_supervisor):
            mirror.terminate(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.5)
        assert other_supervisor.poll() is None
        mirror.terminate(supervisor.pid)
        supervisor.wait(5)
        other_supervisor.kill()
    mirror.terminate(supervisor.pid)
    mirror.remote.close()


def test_ctrl_c_ends_only_a_local_supervisor(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    run = tmp_path / "runs" / "a run"
    local_run = LocalRun(run)
    local_run.terminate(sleeper.pid)
    with subprocess.Popen(["tail", "-f", "/dev/null", "--", str(run)], stderr=subprocess.DEVNULL) as pager:
        local_run.terminate(pager.pid)
        with pytest.raises(subprocess.TimeoutExpired):  # it only shows the run's folder
            pager.wait(0.3)
        pager.kill()
    assert sleeper.poll() is None
    with start_supervisor(run) as supervisor:
        local_run.terminate(supervisor.pid)
        supervisor.wait(5)
    local_run.terminate(supervisor.pid)
