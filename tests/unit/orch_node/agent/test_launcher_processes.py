"""Notice that a process of the launcher above a rank has ended, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import program
from orch_node.agent import processes
from orch_node.agent.launcher_processes import CHECK_SECONDS, CONFIRM_SECONDS, LauncherProcesses

from tests.support.files import write_files, write_program
from tests.support.waiting import wait_until

# A launcher's daemon without a trace of the run, which starts a wrapper.
DAEMON = """#!{python}
import os, subprocess, sys
environment = {{**os.environ, "ORCH_RUN_DIR": sys.argv[1], "RANK": "3"}}
subprocess.Popen([sys.executable, sys.argv[2], "rank", "--run", sys.argv[1]], env=environment).wait()
"""
# It starts a training process, and outlives the daemon.
WRAPPER = """
import subprocess, sys, time
if sys.argv[1] == "rank":
    subprocess.Popen([sys.executable, sys.argv[0], "run-script"])
time.sleep(60)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def daemon(tmp_path: Path, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a daemon, once its rank runs."""
    install = tmp_path / "train"
    write_files(install, {program.MARK: "", "node.py": WRAPPER})
    path = write_program(tmp_path / "hydra_pmi_proxy", DAEMON.format(python=sys.executable))
    process = subprocess.Popen([path, run_dir, install / "node.py"])
    try:
        wait_until(lambda: len(processes.run_processes(str(run_dir))) == 3, "daemon, wrapper and rank", 60)
        yield process
    finally:
        for living in processes.run_processes(str(run_dir)):
            processes.send_signal(living, signal.SIGKILL)
        process.kill()
        process.wait()


def test_lost_daemon_is_reported_with_its_ranks(run_dir: Path, daemon: subprocess.Popen[bytes]) -> None:
    launcher = LauncherProcesses()
    launcher.add(processes.run_processes(str(run_dir)))
    assert launcher.describe_lost(now=10.0) == ""
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    first_check = 10.0 + CHECK_SECONDS
    assert launcher.describe_lost(first_check) == "", "the launcher may be ending its ranks"
    message = launcher.describe_lost(first_check + CONFIRM_SECONDS)
    assert f"hydra_pmi_proxy (process {daemon.pid})" in message
    assert "rank 3" in message


def test_daemon_that_ends_its_ranks_is_not_reported(run_dir: Path, daemon: subprocess.Popen[bytes]) -> None:
    launcher = LauncherProcesses()
    launcher.add(processes.run_processes(str(run_dir)))
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    assert launcher.describe_lost(now=10.0) == ""
    for process in processes.run_processes(str(run_dir)):
        processes.send_signal(process, signal.SIGKILL)
    wait_until(lambda: not processes.run_processes(str(run_dir)), "no process of the run")
    assert launcher.describe_lost(10.0 + 2 * CONFIRM_SECONDS) == ""
