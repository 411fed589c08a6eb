"""End `orch train ... | head` when nobody reads its output, while its run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs import store
from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit, start_orch, write_script

SCRIPT = "import time\nfor i in range(3000):\n    print('line', i, flush=True)\n    time.sleep(0.1)\n"


def run_state(folder: Path) -> str:
    (run,) = store.recorded(folder / "runs").runs
    return run.state


@pytest.mark.parametrize(
    ("interrupted", "code", "state"),
    [(False, 128 + signal.SIGPIPE, "running"), (True, 130, "stopped")],
    ids=["closed", "interrupted"],
)
def test_closed_output_ends_train_but_only_an_interrupt_stops_its_run(
    orch: Orch, tmp_path: Path, interrupted: bool, code: int, state: str
) -> None:
    """Close the output of `orch train | head`, or end `orch train | tee` by Ctrl-C, which also ends tee."""
    arguments = ("train", write_script(tmp_path, SCRIPT), "--ppn", "1", "--show", "all")
    reading, writing = os.pipe()
    with os.fdopen(reading) as output, start_orch(tmp_path, *arguments, stdout=writing) as process:
        os.close(writing)
        assert any("line 0" in line for line in output)
        if interrupted:
            process.send_signal(signal.SIGINT)
        output.close()
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert ("The output is closed" in err) is not interrupted
    assert run_state(tmp_path) == state
    if not interrupted:
        expect_exit(orch("stop"))


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [("logs none", 2, ">&- 2>&-"), ("train own.py --ppn 1 --detach", 0, "<&- >&- 2>&-")],
)
def test_closed_descriptor_is_no_bug(tmp_path: Path, arguments: str, code: int, closed: str) -> None:
    write_script(tmp_path)
    command = ["sh", "-c", f'exec "$0" -m orchestrator.cli.main {arguments} {closed}', sys.executable]
    process = subprocess.run(command, cwd=tmp_path, env=orch_environment(tmp_path), capture_output=True, text=True)
    expect_exit(process, code)
