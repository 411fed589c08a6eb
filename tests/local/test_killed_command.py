"""Kill `orch train`, or close its output, while it watches a run: the run continues, as docs/how-to/runs.md states."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs import store
from tests.local import runs
from tests.support.waiting import wait_until

# Each rank waits until the test creates a file.
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
dist.all_reduce(torch.ones(1))
print("begun", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
dist.all_reduce(torch.ones(1))
print("continued", flush=True)
"""


def test_run_continues_when_its_command_is_killed(orch: runs.Orch, tmp_path: Path) -> None:
    """Kill the command and its session when both ranks train, and wait for the end of the run."""
    arguments = ("train", runs.write_script(tmp_path, SCRIPT), "--ppn", "2", "--backend", "gloo")
    options = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": None}
    process = runs.start_orch(tmp_path, *arguments, "--", str(tmp_path / "continue"), **options)

    def training_ranks() -> int:
        return sum("begun" in path.read_text() for path in tmp_path.glob("runs/*/ranks/rank-*.log"))

    try:
        wait_until(lambda: training_ranks() == 2, "two ranks that train")
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    run = runs.last_run(tmp_path)
    assert not (run / "outcome.json").exists()
    (tmp_path / "continue").touch()
    runs.expect_exit(orch("attach", run.name))
    assert runs.read_outcome(run)["state"] == "done"
    assert all("continued" in runs.rank_log(run, rank) for rank in (0, 1))
    assert runs.run_processes(run) == []


PRINT_SCRIPT = "import time\nfor i in range(3000):\n    print('line', i, flush=True)\n    time.sleep(0.1)\n"


def run_state(folder: Path) -> str:
    (run,) = store.recorded(folder / "runs").runs
    return run.state


@pytest.mark.parametrize(("interrupted", "code", "state"), [(False, 141, "running"), (True, 130, "stopped")])
def test_closed_output_ends_train_but_only_an_interrupt_stops_its_run(
    orch: runs.Orch, tmp_path: Path, interrupted: bool, code: int, state: str
) -> None:
    """Close the output of `orch train | head`, or end `orch train | tee` by Ctrl-C, which also ends tee."""
    arguments = ("train", runs.write_script(tmp_path, PRINT_SCRIPT), "--ppn", "1", "--show", "all")
    reading, writing = os.pipe()
    with os.fdopen(reading) as output, runs.start_orch(tmp_path, *arguments, stdout=writing) as process:
        os.close(writing)
        assert any("line 0" in line for line in output)
        if interrupted:
            process.send_signal(signal.SIGINT)
        output.close()
        err = runs.wait_for_exit(process, code, seconds=30).stderr
    assert ("The output is closed" in err) is not interrupted
    assert run_state(tmp_path) == state
    if not interrupted:
        runs.expect_exit(orch("stop"))


@pytest.mark.parametrize("arguments", ["--help", "train --help-all", "--version"])
def test_output_that_nobody_reads_ends_a_command_like_sigpipe(tmp_path: Path, arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = runs.start_orch(tmp_path, *arguments.split(), stdout=writing)
    os.close(writing)
    assert not runs.wait_for_exit(process, 141).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        ("logs none", 2, ">&- 2>&-"),
        ("train own.py --ppn 1 --detach", 0, "<&- >&- 2>&-"),
        ("--help", 1, "> /dev/full"),
        ("train own.py --ppn 1", 1, "> /dev/full"),
        (f"train {'x' * 300}.py", 1, ""),
    ],
)
def test_file_that_cannot_be_written_or_named_is_no_bug(tmp_path: Path, arguments: str, code: int, closed: str) -> None:
    runs.write_script(tmp_path)
    command = ["sh", "-c", f'exec "$0" -m orchestrator.cli.main {arguments} {closed}', sys.executable]
    err = runs.expect_exit(runs.run_in(tmp_path, *command), code).stderr
    assert "Traceback" not in err
    assert "bug" not in err
    assert "No space left on device" in err or "full" not in closed
