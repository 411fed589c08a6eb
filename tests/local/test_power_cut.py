"""Cut the power at any moment of a run, and check that no command has a bug and that other runs stay visible."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from tests.conftest import orch_environment, require_program
from tests.local.runs import ORCH, expect_exit, write_script
from tests.support.power import STRACE, Operation, read_operations, states_after_power_cut
from tests.support.recorded import make_run

GOOD = "20200101-120000-qa-0000"
BUG = 3
COMMANDS = (("runs",), ("runs", "show", "RUN"), ("report", "RUN"), ("stop", "RUN"), ("clean",), ("runs",))
SLOW_COMMANDS = ("report", "stop", "clean")  # they start programs or render a page, so they run for some states only
SLOW_STATES = 6
SECONDS = 2.0  # for the other states


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    """Return the operations on files of controller, supervisor, agent and ranks during a run."""
    require_program("strace")
    folder = tmp_path_factory.mktemp("recorded")
    trace = folder / "trace"
    train = ("train", write_script(folder), "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    command = [*STRACE, "-o", str(trace), *ORCH, *train]
    environment = orch_environment(folder)
    expect_exit(subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120))
    return read_operations(trace, folder / "runs")


OrchInProcess = Callable[..., tuple[int, str, str]]


@pytest.fixture
def orch_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OrchInProcess:
    """Return orch as a function in this process, because there are hundreds of states."""
    monkeypatch.chdir(tmp_path)
    for name, value in orch_environment(tmp_path).items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["orch", *arguments])
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
        return code, out.getvalue(), err.getvalue()

    return run


def write_state(state: dict[str, bytes], folder: Path) -> str:
    """Write the files of a state, and return the id of their run."""
    run = ""
    for name, content in state.items():
        path = name.partition("/runs/")[2]
        run = path.partition("/")[0]
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return run


def test_files_are_synced_before_they_are_renamed(recorded: list[Operation]) -> None:
    names = {Path(operation.target).name for operation in recorded if operation.kind == "rename"}
    assert names >= {"plan.json", "run.json", "layout.json", "supervisor.json", "outcome.json"}
    for index, operation in enumerate(recorded):
        if operation.kind == "rename":
            assert Operation("sync", operation.path) in recorded[:index], operation.path
            folder = operation.target.rpartition("/")[0]
            assert Operation("sync", folder) in recorded[index:], operation.target


def test_commands_report_all_runs_after_any_power_cut(
    recorded: list[Operation], orch_in_process: OrchInProcess, tmp_path: Path
) -> None:
    states = list(states_after_power_cut(recorded))
    assert len(states) > 50
    slow_states = {round(index * (len(states) - 1) / (SLOW_STATES - 1)) for index in range(SLOW_STATES)}
    deadline = time.monotonic() + SECONDS
    for number, state in enumerate(states):
        if number not in slow_states and time.monotonic() > deadline:
            continue
        folder = tmp_path / str(number)
        make_run(folder, GOOD, ranks=2, seconds=3)
        run = write_state(state, folder) or GOOD
        for command in COMMANDS:
            if command[0] in SLOW_COMMANDS and number not in slow_states:
                continue
            name, *arguments = [run if word == "RUN" else word for word in command]
            code, out, err = orch_in_process(name, "--runs-dir", str(folder), *arguments)
            assert code != BUG, (number, command, err, sorted(state))
            assert command != ("runs",) or GOOD in out, (number, out, err)
