"""Kill `orch train` while it watches a run: the run continues, as docs/how-to/runs.md states."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.local.runs import (
    Orch,
    expect_exit,
    last_run,
    rank_log,
    read_outcome,
    run_processes,
    start_orch,
    write_script,
)
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


def test_run_continues_when_its_command_is_killed(orch: Orch, tmp_path: Path) -> None:
    """Kill the command and its session when both ranks train, and wait for the end of the run."""
    arguments = ("train", write_script(tmp_path, SCRIPT), "--ppn", "2", "--backend", "gloo")
    options = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": None}
    process = start_orch(tmp_path, *arguments, "--", str(tmp_path / "continue"), **options)

    def training_ranks() -> int:
        return sum("begun" in path.read_text() for path in tmp_path.glob("runs/*/ranks/rank-*.log"))

    try:
        wait_until(lambda: training_ranks() == 2, "two ranks that train")
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    run = last_run(tmp_path)
    assert not (run / "outcome.json").exists()
    (tmp_path / "continue").touch()
    expect_exit(orch("attach", run.name))
    assert read_outcome(run)["state"] == "done"
    assert all("continued" in rank_log(run, rank) for rank in (0, 1))
    assert run_processes(run) == []
