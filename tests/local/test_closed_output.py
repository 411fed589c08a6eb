"""`orch train ... | head`: the command ends when nobody reads its output, and the run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from orchestrator.runs import store
from tests.conftest import orch_environment

Orch = Callable[..., subprocess.CompletedProcess[str]]
TALKS = "import time\nfor i in range(3000):\n    print('line', i, flush=True)\n    time.sleep(0.1)\n"
CLOSED = 128 + signal.SIGPIPE
COMMAND = [sys.executable, "-m", "orchestrator.cli.main"]


@dataclass
class Training:
    """An `orch train` whose script prints lines for minutes, after it has shown the first one."""

    process: subprocess.Popen[bytes]
    output: IO[str]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Training]:
    (tmp_path / "own.py").write_text(TALKS)
    command = [*COMMAND, "train", "own.py", "--ppn", "1", "--show", "all"]
    reading, writing = os.pipe()
    with (
        os.fdopen(reading) as output,
        (tmp_path / "errors").open("w") as results,
        subprocess.Popen(
            command, cwd=tmp_path, env=orch_environment(tmp_path), stdout=results, stderr=writing
        ) as process,
    ):
        os.close(writing)
        assert any("line 0" in line for line in output)
        yield Training(process, output)
        process.send_signal(signal.SIGINT)


def state(tmp_path: Path) -> str:
    (run,) = store.recorded(tmp_path / "runs").runs
    return run.state


def test_train_ends_at_a_closed_output_and_its_run_continues(train: Training, orch: Orch, tmp_path: Path) -> None:
    train.output.close()
    assert train.process.wait(20) == CLOSED
    assert state(tmp_path) == "running"
    assert orch("stop").returncode == 0
    assert state(tmp_path) == "stopped"


def test_an_interrupted_train_stops_its_run_though_its_output_is_closed(train: Training, tmp_path: Path) -> None:
    train.process.send_signal(signal.SIGINT)
    train.output.close()
    assert train.process.wait(30) == 130
    assert state(tmp_path) == "stopped"


def test_the_message_goes_to_the_output_that_is_open(tmp_path: Path) -> None:
    program = """
from orchestrator import screen
screen.closed_output.message = "Run x continues."
for _ in range(100_000):
    screen.print_text("line")
"""
    environment = orch_environment(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == "Run x continues.\n"
    assert process.returncode == CLOSED
