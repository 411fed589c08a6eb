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
from tests.local.ssh_node import INVENTORY, SshNode
from tests.support.waiting import wait_until

TWO_RANKS = ("--ppn", "2", "--backend", "gloo")
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


def count_of_training_ranks(runs: Path) -> int:
    return sum("begun" in path.read_text() for path in runs.glob("*/ranks/rank-*.log"))


def kill_command(orch: Orch, folder: Path, runs: Path, number: signal.Signals, *options: str) -> Path:
    """Start a run, kill the command and its session when both ranks train, and wait for the end of the run.

    Args:
        orch: starts orch.
        folder: the working directory.
        runs: the folder of all runs on the node.
        number: the signal.
        options: of `orch train`.

    Returns:
        The run's folder on this machine.
    """
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP for all processes that it starts
    script = write_script(folder, SCRIPT)
    arguments = ("train", script, *TWO_RANKS, *options, "--", str(folder / "continue"))
    process = start_orch(folder, *arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=None)
    try:
        wait_until(lambda: count_of_training_ranks(runs) == 2, "two ranks that train")
        os.killpg(process.pid, number)
        assert process.wait(30) == -number
    finally:
        process.kill()
        process.wait()
    run = last_run(folder)
    assert not (run / "outcome.json").exists()
    (folder / "continue").touch()
    expect_exit(orch("attach", run.name))
    return run


def test_run_on_this_machine_continues_when_its_command_is_killed(orch: Orch, tmp_path: Path) -> None:
    run = kill_command(orch, tmp_path, tmp_path / "runs", signal.SIGKILL)
    assert read_outcome(run)["state"] == "done"
    assert all("continued" in rank_log(run, rank) for rank in (0, 1))
    assert run_processes(run) == []


def test_run_on_nodes_continues_when_its_command_is_killed(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    run = kill_command(orch, tmp_path, ssh_node.root / "runs", signal.SIGHUP, *INVENTORY)
    assert read_outcome(run)["state"] == "done"
    assert all("continued" in rank_log(ssh_node.root / "runs" / run.name, rank) for rank in (0, 1))
    assert run_processes(run) == []
