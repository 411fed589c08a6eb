"""Notice that a process of the launcher above a rank has ended, with real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

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


def test_lost_daemon_is_reported_unless_its_ranks_have_ended(tmp_path: Path) -> None:
    run_dir, install = tmp_path / "run", tmp_path / "train"
    write_files(install, {program.MARK: "", "node.py": WRAPPER})
    path = write_program(tmp_path / "hydra_pmi_proxy", DAEMON.format(python=sys.executable))
    launcher, later = LauncherProcesses(), LauncherProcesses()
    with subprocess.Popen([path, run_dir, install / "node.py"]) as daemon:
        try:
            wait_until(lambda: len(processes.run_processes(str(run_dir))) == 3, "daemon, wrapper and rank", 60)
            for recorder in (launcher, later):
                recorder.add(processes.run_processes(str(run_dir)))
                assert recorder.describe_lost(now=10.0) == ""
        finally:
            daemon.kill()
    try:
        first_check = 10.0 + CHECK_SECONDS
        for recorder in (launcher, later):
            assert recorder.describe_lost(first_check) == "", "the launcher may be ending its ranks"
        message = launcher.describe_lost(first_check + CONFIRM_SECONDS)
        assert f"hydra_pmi_proxy (process {daemon.pid})" in message
        assert "rank 3" in message
    finally:
        for process in processes.run_processes(str(run_dir)):
            processes.send_signal(process, signal.SIGKILL)
    wait_until(lambda: not processes.run_processes(str(run_dir)), "no process of the run")
    assert later.describe_lost(first_check + CONFIRM_SECONDS) == ""
