"""Check that a run whose disk is full ends with that reason, wherever the disk was needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.runs import follow
from orchestrator.runs.follow import LocalRun
from tests.local.runs import Orch, expect_exit, last_run, read_events, read_outcome, run_processes, write_script
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.local.workspaces import Workspace
from tests.support.disks import fill, small_file_system

FILL = """
import os, sys, time
import torch

def fill():
    with open(os.environ["ORCH_RUN_DIR"] + "/data", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
"""
REPORT_PROGRESS = """
from orch_node import report
for step in range(100):
    report('progress', phase='train', step=step, steps=100)
"""
SCRIPTS = {
    # After it has filled the disk, only orch writes.
    "sleeps": f"fill()\n{REPORT_PROGRESS}    time.sleep(0.2)\n",
    "prints": "fill()\nfor _ in range(100):\n    print('x' * 1000, flush=True)\n",
    "killed": f"fill()\nimport signal\n{REPORT_PROGRESS}os.kill(os.getpid(), signal.SIGKILL)\n",
}
PRINT_ON_RANK_1 = """
import os, torch.distributed as dist
dist.init_process_group()
dist.barrier()
for _ in range(100 if dist.get_rank() else 0):
    print('x' * 1000, flush=True)
dist.barrier()
"""
ONE_RANK = ("--ppn", "1", "--backend", "gloo")
NO_SPACE = "No space left on device"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder whose folder of runs is a file system of 2 MB."""
    with small_file_system(tmp_path / "runs", "2m"):
        yield tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_disk_that_a_script_fills_is_reported(orch: Orch, small_disk: Path, name: str) -> None:
    process = expect_exit(orch("train", write_script(small_disk, FILL + SCRIPTS[name]), *ONE_RANK), 1)
    run = last_run(small_disk)
    assert read_outcome(run)["state"] == "failed"
    assert NO_SPACE in process.stderr
    assert run_processes(run) == []
    assert read_events(run), "all lines are complete"
    assert f"node0: {run} is full ({NO_SPACE})" in process.stderr


@pytest.mark.parametrize("free_bytes", [0, 48 << 10], ids=["no-space-for-the-plan", "no-space-for-the-supervisor"])
def test_disk_that_is_full_before_the_run_is_reported(orch: Orch, small_disk: Path, free_bytes: int) -> None:
    fill(small_disk / "runs", free_bytes)
    process = expect_exit(orch("train", write_script(small_disk, ""), *ONE_RANK), 1)
    assert f"is full ({NO_SPACE})" in process.stderr


def test_full_disk_of_a_silent_supervisor_is_reported(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "START_SECONDS", 0.1)
    run = small_disk / "runs" / "run"
    run.mkdir()
    (run / "supervisor.log").touch()
    fill(small_disk / "runs")
    with pytest.raises(ExecuteError, match=f"{run} is full"):
        follow.await_start(run, LocalRun(run))


@pytest.mark.parametrize("free_bytes", [0, 48 << 10], ids=["nothing", "the-plan"])
def test_full_disk_of_a_node_behind_ssh_is_reported(orch: Orch, ssh_node: SshNode, free_bytes: int) -> None:
    runs = ssh_node.root / "runs"
    with small_file_system(runs, "256k"):
        fill(runs, free_bytes)
        process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 1)
    assert "far: " in process.stderr
    assert NO_SPACE in process.stderr


def test_node_with_a_full_disk_is_named(two_hosts: Workspace) -> None:
    """Fill the disk on which the agent and the wrapper of node1 write; that of node0 has space."""
    host, runs = two_hosts.lab.hosts[1], f"{two_hosts.lab.root}/runs"
    inside = ("nsenter", "--target", str(host.process.pid), "--mount")
    subprocess.run([*inside, "mkdir", "-p", runs], check=True)
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", runs], check=True)
    try:
        cell = two_hosts.train_text(PRINT_ON_RANK_1, "--backend", "gloo", code=1)
    finally:
        # Not umount(8): it reads the /proc of other process ids.
        detach = f"import ctypes; assert not ctypes.CDLL(None).umount2({os.fsencode(runs)!r}, 2)"
        subprocess.run([*inside, sys.executable, "-c", detach], check=True)
    failure = cell.report["failure"]
    assert (failure["rank"], failure["node"]) == (1, host.name)
    assert f"is full ({NO_SPACE})" in failure["text"]
    assert not any(node["left"] for node in cell.report["nodes"].values())
