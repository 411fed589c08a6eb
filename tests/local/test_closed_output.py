"""End `orch train ... | head` when nobody reads its output, while its run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from orchestrator.runs import store
from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit, start_orch, write_script

SCRIPT = "import time\nfor i in range(3000):\n    print('line', i, flush=True)\n    time.sleep(0.1)\n"
EXIT_CODE = 128 + signal.SIGPIPE
PRINT_WITHOUT_END = """
from orchestrator import screen
screen.closed_output.message = "Run x continues."
for _ in range(100_000):
    screen.print_text("line")
"""


@dataclass
class Training:
    """An `orch train` that has shown the first line of a script that prints for minutes."""

    process: subprocess.Popen[str]
    output: IO[str]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    arguments = ("train", write_script(tmp_path, SCRIPT), "--ppn", "1", "--show", "all")
    reading, writing = os.pipe()
    with (
        os.fdopen(reading) as output,
        (tmp_path / "results").open("w") as results,
        start_orch(tmp_path, *arguments, stdout=writing, stderr=results) as process,
    ):
        os.close(writing)
        assert any("line 0" in line for line in output)
        yield Training(process, output)
        process.send_signal(signal.SIGINT)


def run_state(folder: Path) -> str:
    (run,) = store.recorded(folder / "runs").runs
    return run.state


def test_train_ends_at_a_closed_output_and_its_run_continues(training: Training, orch: Orch, tmp_path: Path) -> None:
    training.output.close()
    assert training.process.wait(20) == EXIT_CODE
    assert run_state(tmp_path) == "running"
    expect_exit(orch("stop"))
    assert run_state(tmp_path) == "stopped"


def test_interrupted_train_stops_its_run_although_its_output_is_closed(training: Training, tmp_path: Path) -> None:
    training.process.send_signal(signal.SIGINT)
    training.output.close()
    assert training.process.wait(30) == 130
    assert run_state(tmp_path) == "stopped"


def test_message_goes_to_the_output_that_is_still_open(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", PRINT_WITHOUT_END], subprocess.PIPE
    environment = orch_environment(tmp_path)
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == "Run x continues.\n"
    assert process.returncode == EXIT_CODE


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [("runs", 0, ">&-"), ("logs none", 2, ">&- 2>&-"), ("train own.py --ppn 1 --detach", 0, "<&- >&- 2>&-")],
)
def test_closed_descriptor_is_no_bug(tmp_path: Path, arguments: str, code: int, closed: str) -> None:
    write_script(tmp_path)
    command = ["sh", "-c", f'exec "$0" -m orchestrator.cli.main {arguments} {closed}', sys.executable]
    process = subprocess.run(command, cwd=tmp_path, env=orch_environment(tmp_path), capture_output=True, text=True)
    expect_exit(process, code)
