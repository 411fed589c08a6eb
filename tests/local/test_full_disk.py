"""A run whose disk is full ends with that reason, wherever the disk was needed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.runs import follow
from orchestrator.runs.follow import LocalRun
from tests.local.runs import Orch, expect_exit, last_run, leftover_processes
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.local.workspaces import Workspace

FILL = """
import os, sys, time
import torch

def fill():
    with open(os.environ["ORCH_RUN_DIR"] + "/data", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                last = error
    return last
"""
SCRIPTS = {
    # Nobody but orch writes from there on.
    "sleeps": "fill()\nfrom orch_node import report\nfor step in range(100):\n"
    "    report('progress', phase='train', step=step, steps=100)\n    time.sleep(0.2)\n",
    "raises": "raise fill()\n",
    "prints": "fill()\nfor _ in range(100):\n    print('x' * 1000, flush=True)\n",
    "killed": "fill()\nimport signal\nfrom orch_node import report\nfor step in range(100):\n"
    "    report('progress', phase='train', step=step, steps=100)\n"
    "os.kill(os.getpid(), signal.SIGKILL)\n",
}


FULL_DISK = "is full (No space left on device)"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The folder of all runs is a file system of 2 MB."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    runs = tmp_path / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(runs)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_reason_reaches_the_controller(orch: Orch, small: Path, name: str) -> None:
    (small / "fills.py").write_text(FILL + SCRIPTS[name])
    process = orch("train", "fills.py", "--ppn", "1", "--backend", "gloo")
    run = last_run(small)
    assert process.returncode == 1, process.stdout + process.stderr
    outcome = json.loads((run / "outcome.json").read_text())
    assert outcome["state"] == "failed"
    assert "No space left on device" in process.stdout
    assert leftover_processes(run) == []
    for line in (run / "events.jsonl").read_text().splitlines():
        json.loads(line)
    if name in ("raises", "prints"):
        assert "OSError: [Errno 28]" in outcome["first_failure"]["text"]
    else:
        assert f"node0: {run} is full (No space left on device)" in process.stdout


def fill(folder: Path, left: int = 0) -> None:
    """All of a file system but the last bytes of it."""
    with (folder / "data").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() - left))


def test_a_disk_that_is_full_before_the_run_is_the_reason(orch: Orch, small: Path) -> None:
    fill(small / "runs")
    (small / "own.py").write_text("")
    process = expect_exit(orch("train", "own.py", "--ppn", "1", "--backend", "gloo"), 1)
    assert FULL_DISK in process.stderr


def test_a_disk_that_is_full_for_the_supervisor_is_the_reason(orch: Orch, small: Path) -> None:
    """The files of the plan fit, the room that it takes for its last words does not."""
    fill(small / "runs", left=48 << 10)
    (small / "own.py").write_text("")
    process = expect_exit(orch("train", "own.py", "--ppn", "1", "--backend", "gloo"), 1)
    assert FULL_DISK in process.stderr


def test_a_supervisor_that_can_write_no_word_is_told_of(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "START_SECONDS", 0.1)
    run = small / "runs" / "run"
    run.mkdir()
    (run / "supervisor.log").touch()
    fill(small / "runs")
    with pytest.raises(ExecuteError, match=f"{run} is full"):
        follow.await_start(run, LocalRun(run))


@pytest.fixture
def far_and_small(ssh_node: SshNode) -> Iterator[SshNode]:
    """A node behind sshd whose folder of runs is a file system of 256 KB."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    runs = ssh_node.root / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(runs)], check=True)
    yield ssh_node
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.mark.parametrize("left", [0, 4 << 10, 48 << 10], ids=["nothing", "a-file", "the-plan"])
def test_the_full_disk_of_a_node_behind_ssh_is_the_reason(orch: Orch, far_and_small: SshNode, left: int) -> None:
    fill(far_and_small.root / "runs", left)
    process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 1)
    assert "far: " in process.stderr
    assert "No space left on device" in process.stderr


def test_the_full_disk_of_another_node_is_named(two_hosts: Workspace) -> None:
    """Its agent and its wrapper write there; node0's disk has room."""
    host = two_hosts.lab.hosts[1]
    runs = f"{two_hosts.lab.root}/runs"
    inside = ("nsenter", "--target", str(host.process.pid), "--mount")
    subprocess.run([*inside, "mkdir", "-p", runs], check=True)
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", runs)
    subprocess.run([*inside, *mount], check=True)
    script = two_hosts.folder / "prints.py"
    script.write_text(
        "import os, torch.distributed as dist\ndist.init_process_group()\ndist.barrier()\n"
        "for _ in range(100 if dist.get_rank() else 0):\n    print('x' * 1000, flush=True)\n"
        "dist.barrier()\n"
    )
    try:
        cell = two_hosts.train(str(script), "--backend", "gloo")
    finally:
        # Not umount(8): it looks into the /proc of other process ids.
        detach = f"import ctypes; assert not ctypes.CDLL(None).umount2({os.fsencode(runs)!r}, 2)"
        subprocess.run([*inside, sys.executable, "-c", detach], check=True)
    assert cell.code == 1
    failure = cell.report["failure"]
    assert (failure["rank"], failure["node"]) == (1, host.name)
    assert "OSError: [Errno 28] No space left on device" in failure["text"]
    assert not any(node["left"] for node in cell.report["nodes"].values())
