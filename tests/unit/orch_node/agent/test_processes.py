"""The recognition of processes of a run, and of orch's own programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import stack_signal
from orch_node.agent import cleanup, processes
from orch_node.protocol.layout import Placement, RunLayout, render

from orchestrator.paths import TRAIN

NAMES = ("supervise.py", "warden.py", "rank.py", "node.py", "agent.py")
# A launcher without output.
LAUNCHER = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run's folder with a layout without cores."""
    folder = tmp_path / "runs" / "20260101-120000-x-0000"
    folder.mkdir(parents=True)
    placement = Placement(
        rank=0, node="node0", local_rank=0, local_world_size=1, cpus=(), worker_cpus=(), threads=1, env={}
    )
    layout = RunLayout(
        world_size=1, backend="gloo", backend_module="", timeout_seconds=60.0, nodes=(), ranks=(placement,)
    )
    (folder / "layout.json").write_text(render(layout))
    return folder


def await_launch(run: Path) -> None:
    deadline, path = time.monotonic() + 60, run / "events.jsonl"
    while not path.exists() or "launched" not in path.read_text():
        assert time.monotonic() < deadline, "the launcher was not started"
        time.sleep(0.02)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("subcommand", ["supervise", "agent", "run-script"])
def test_program_of_the_user_with_any_name_is_no_watcher(run: Path, tmp_path: Path, name: str, subcommand: str) -> None:
    """Let `orch clean` end it: it belongs to the run by its environment."""
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / name).write_text("import sys; print(1, flush=True); sys.stdin.read()")
    command = [sys.executable, str(folder / name), subcommand, str(run), "node0", "x"]
    environment = {**os.environ, "ORCH_RUN_DIR": str(run)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [run_process.role for run_process in processes.run_processes(str(run))] == ["other"]
        assert list(cleanup.find_leftovers(str(run.parent)).runs) == [run.name]
        report = cleanup.clean(str(run.parent), [])
    assert [record.pid for record in report.runs[run.name].ended] == [process.pid]


@pytest.mark.parametrize("has_variable", [True, False], ids=["variable", "argument-only"])
def test_process_belongs_to_a_run_by_its_environment_only(tmp_path: Path, has_variable: bool) -> None:
    """Ignore a pager that reads a log of the run."""
    environment = {**os.environ, **({"ORCH_RUN_DIR": str(tmp_path)} if has_variable else {})}
    command = [sys.executable, "-c", "print(flush=True); input()", str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [run_process.pid for run_process in processes.run_processes(str(tmp_path))]
        process.communicate(b"\n")
    assert pids == ([process.pid] if has_variable else [])


@pytest.fixture
def other_installation(run: Path, tmp_path: Path) -> Iterator[Path]:
    """Watch the run by another installation of orch, and return that."""
    train = tmp_path / "another orch" / "train"
    shutil.copytree(TRAIN, train, ignore=shutil.ignore_patterns("recipes", "__pycache__"))
    command = [sys.executable, str(train / "node.py"), "supervise", str(run), "--", *LAUNCHER]
    process = subprocess.Popen(command)
    await_launch(run)
    yield train
    process.terminate()
    assert process.wait(30) == 75  # preempted


def roles(run: Path) -> set[str]:
    return {process.role for process in processes.run_processes(str(run))}


def test_run_of_another_installation_is_watched(run: Path, other_installation: Path) -> None:
    assert {"supervisor", "agent"} <= roles(run)
    assert cleanup.find_leftovers(str(run.parent)).runs == {}, "`orch clean` must not end it"
    shutil.rmtree(other_installation)
    assert {"supervisor", "agent"} <= roles(run), "even after that installation is removed"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("", signal.SIGRTMIN + 11),
        ("SIGUSR2", signal.SIGUSR2),
        ("usr1", signal.SIGUSR1),
        ("SIGRTMIN+3", signal.SIGRTMIN + 3),
        (str(int(signal.SIGUSR1)), signal.SIGUSR1),
        ("none", 0),
        ("0", 0),
    ],
)
def test_stack_signal(value: str, number: int) -> None:
    assert stack_signal.configured_signal({"ORCH_STACK_SIGNAL": value}) == number


@pytest.mark.parametrize("value", ["SIGNOTHING", "KILL", "STOP", "9", "999", "-3", "SIG_DFL"])
def test_invalid_stack_signal_is_rejected(value: str) -> None:
    with pytest.raises(ValueError, match="ORCH_STACK_SIGNAL"):
        stack_signal.configured_signal({"ORCH_STACK_SIGNAL": value})


def test_default_stack_signal_has_no_other_use() -> None:
    assert stack_signal.configured_signal({}) not in (signal.SIGUSR1, signal.SIGUSR2)
    assert stack_signal.signal_name(stack_signal.DEFAULT) == "SIGRTMIN+11"
