"""Recognize the processes of a run, orch's own programs among them, and the end of a process of the launcher."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import machine, program
from orch_node.agent import cleanup, processes
from orch_node.agent.agent import CONFIRM_SECONDS, LauncherProcesses
from orch_node.agent.rank_signals import describe_position
from orch_node.protocol.agent import RankStack
from orch_node.protocol.environment import configured_signal, signal_name
from orch_node.protocol.layout import render

from orchestrator.files import TRAIN
from tests.support.files import write_files, write_program
from tests.support.layouts import make_layout
from tests.support.processes import running_python
from tests.support.stand_ins import STACK
from tests.support.waiting import wait_until

# A launcher without output.
LAUNCHER = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run's folder with a layout without cores."""
    folder = tmp_path / "runs" / "20260101-120000-x-0000"
    folder.mkdir(parents=True)
    (folder / "layout.json").write_text(render(make_layout("node0", pinned=False)))
    return folder


def test_user_program_named_like_one_of_orch_is_not_mistaken_for_it(run: Path, tmp_path: Path) -> None:
    """Let `orch clean` end the program, which belongs to the run by its environment."""
    write_files(tmp_path / "train", {"node.py": "import sys; print(1, flush=True); sys.stdin.read()"})
    command = [sys.executable, str(tmp_path / "train/node.py"), "supervise", str(run), "node0", "x"]
    environment = {**os.environ, "ORCH_RUN_DIR": str(run)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert [run_process.role for run_process in processes.run_processes(str(run))] == ["other"]
        assert list(cleanup.clean(cleanup.parse(["clean", str(run.parent), "--dry-run"])).left) == [run.name]
        report = cleanup.clean(cleanup.parse(["clean", str(run.parent)]))
    assert [record.pid for record in report.ended[run.name]] == [process.pid]


def test_process_belongs_to_a_run_by_its_environment_only(tmp_path: Path) -> None:
    """Ignore a pager that reads a log of the run."""
    for has_variable in (True, False):
        environment = {**os.environ, **({"ORCH_RUN_DIR": str(tmp_path)} if has_variable else {})}
        with running_python("import sys; print(flush=True); sys.stdin.read()", tmp_path, env=environment) as process:
            pids = [run_process.pid for run_process in processes.run_processes(str(tmp_path))]
        assert pids == ([process.pid] if has_variable else [])


@pytest.fixture
def other_installation(run: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield another installation of orch, which watches the run."""
    train = tmp_path / "another orch" / "train"
    shutil.copytree(TRAIN, train, ignore=shutil.ignore_patterns("recipes", "__pycache__"))
    command = [sys.executable, str(train / "node.py"), "supervise", str(run), "--", *LAUNCHER]
    process = subprocess.Popen(command)
    events = run / "events.jsonl"
    wait_until(lambda: events.exists() and "launched" in events.read_text(), "the launcher was started", 60)
    yield train
    process.terminate()
    assert process.wait(30) == 75  # preempted


def roles(run: Path) -> set[str]:
    return {process.role for process in processes.run_processes(str(run))}


def test_watchers_of_another_installation_are_recognized(run: Path, other_installation: Path) -> None:
    assert {"supervisor", "agent"} <= roles(run)
    assert cleanup.clean(cleanup.parse(["clean", str(run.parent), "--dry-run"])).left == {}, "it is not ended"
    shutil.rmtree(other_installation)
    assert {"supervisor", "agent"} <= roles(run), "even after that installation is removed"


def test_stack_signal_is_a_name_or_a_number() -> None:
    for value, number in (
        ("", signal.SIGRTMIN + 11),  # default
        ("SIGUSR2", signal.SIGUSR2),  # name
        ("SIGRTMIN+3", signal.SIGRTMIN + 3),  # real-time
        ("none", 0),
    ):
        assert configured_signal({"ORCH_STACK_SIGNAL": value}) == number
    assert [signal_name(number) for number in (signal.SIGRTMIN + 11, signal.SIGUSR1)] == ["SIGRTMIN+11", "SIGUSR1"]


def test_position_of_a_rank_has_the_line_of_its_script_without_frames_of_imports_and_of_orch() -> None:
    assert describe_position(RankStack(STACK, {})) == "train.py:31 train < train.py:52 main"
    paths = (*(f"/usr/lib/python3/dist-packages/{number}.py" for number in range(6)), "/me/train.py")
    deep = "".join(f'  File "{path}", line 9 in f\n' for path in paths)
    assert describe_position(RankStack(deep, {})) == "0.py:9 f < 1.py:9 f < 2.py:9 f < 3.py:9 f < ... < train.py:9 f"


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
        first_check = 11.0
        for recorder in (launcher, later):
            assert recorder.describe_lost(first_check) == "", "the launcher may be ending its ranks"
        message = launcher.describe_lost(first_check + CONFIRM_SECONDS)
        assert f"hydra_pmi_proxy (process {daemon.pid})" in message
        assert "rank 3" in message
    finally:
        for process in processes.run_processes(str(run_dir)):
            machine.send_signal(*process.key, signal.SIGKILL)
    wait_until(lambda: not processes.run_processes(str(run_dir)), "no process of the run")
    assert later.describe_lost(first_check + CONFIRM_SECONDS) == ""
