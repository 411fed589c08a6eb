"""The power fails at any moment of a run: what is left on the disk never ends a command of orch
with a bug, and hides no other run."""

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
from tests.conftest import need, orch_environment
from tests.support.power import STRACE, Operation, cuts, operations
from tests.support.recorded import make_run

GOOD = "20200101-120000-qa-0000"
BUG = 3
COMMANDS = (("runs",), ("runs", "show", "RUN"), ("report", "RUN"), ("stop", "RUN"), ("clean",), ("runs",))
SLOW = ("report", "stop", "clean")  # they start programs, or make a page: of some states only
SLOW_STATES = 6
SECONDS = 10.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    """Of a whole run on this machine: its controller, supervisor, agent and ranks."""
    need("strace")
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "own.py").write_text("print('hello', flush=True)\n")
    trace = folder / "trace"
    train = ("train", "own.py", "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    process = subprocess.run(
        [*STRACE, "-o", str(trace), sys.executable, "-m", "orchestrator.cli.main", *train],
        cwd=folder,
        env=orch_environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return operations(trace, folder / "runs")


Orch = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orch:
    """The program in this process: there are hundreds of states."""
    monkeypatch.chdir(tmp_path)
    for name, value in orch_environment(tmp_path).items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["orch", *words])
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
        return code, out.getvalue(), err.getvalue()

    return run


def lay(state: dict[str, bytes], base: Path) -> str:
    """The files of the state below the folder; -> the run that they are of."""
    run = ""
    for name, content in state.items():
        inside = name.partition("/runs/")[2]
        run = inside.partition("/")[0]
        (base / inside).parent.mkdir(parents=True, exist_ok=True)
        (base / inside).write_bytes(content)
    return run


def test_the_operations_of_a_run_are_recorded(recorded: list[Operation]) -> None:
    names = {Path(one.to).name for one in recorded if one.kind == "rename"}
    assert names >= {"plan.json", "run.json", "layout.json", "supervisor.json", "outcome.json"}
    for one in recorded:  # what is written whole is on the disk before it has its name
        if one.kind == "rename":
            at = recorded.index(one)
            assert Operation("sync", one.path) in recorded[:at], one.path
            folder = one.to.rpartition("/")[0]
            assert Operation("sync", folder) in recorded[at:], one.to


def test_after_any_power_cut_all_runs_are_told(recorded: list[Operation], here: Orch, tmp_path: Path) -> None:
    states = list(cuts(recorded))
    assert len(states) > 50
    chosen = {round(at * (len(states) - 1) / (SLOW_STATES - 1)) for at in range(SLOW_STATES)}
    deadline = time.monotonic() + SECONDS
    for number, state in enumerate(states):
        if number not in chosen and time.monotonic() > deadline:
            continue
        base = tmp_path / str(number)
        make_run(base, GOOD, ranks=2, seconds=3)
        run = lay(state, base) or GOOD
        for command in COMMANDS:
            if command[0] in SLOW and number not in chosen:
                continue
            words = [run if word == "RUN" else word for word in command]
            code, out, err = here(*words[:1], "--runs-dir", str(base), *words[1:])
            assert code != BUG, (number, words, err, sorted(state))
            assert words != ["runs"] or GOOD in out, (number, out, err)
