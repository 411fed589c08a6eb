"""Check that a full disk is the reason of a run's end, and that records survive a power failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ORCH, require_program
from tests.local.runs import Orch, expect_exit, last_run, read_events, read_outcome, run_in, run_processes, write_script
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
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
    "sleeps": f"fill()\n{REPORT_PROGRESS}    print('x' * 1000, flush=True)\n    time.sleep(0.2)\n",
    "killed": f"fill()\nimport signal\n{REPORT_PROGRESS}os.kill(os.getpid(), signal.SIGKILL)\n",
}
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


def test_disk_without_space_for_the_supervisor_is_reported(orch: Orch, small_disk: Path) -> None:
    fill(small_disk / "runs", 48 << 10)
    assert f"is full ({NO_SPACE})" in expect_exit(orch("train", write_script(small_disk, ""), *ONE_RANK), 1).stderr


def test_full_disk_of_a_node_behind_ssh_is_reported(orch: Orch, ssh_node: SshNode) -> None:
    runs = ssh_node.root / "runs"
    with small_file_system(runs, "256k"):
        fill(runs, 48 << 10)
        process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 1)
    assert "far: " in process.stderr
    assert NO_SPACE in process.stderr


CALLS = "rename,renameat,renameat2,fsync"
STRACE = ("strace", "-f", "-y", "--seccomp-bpf", "-qq", "-e", "signal=none", "-e", f"trace={CALLS}")
RENAME = re.compile(r'rename\w*\((?:\w+<([^>]*)>, )?"([^"]*)", (?:\w+<[^>]*>, )?"([^"]*)"')
SYNC = re.compile(r"fsync\(\d+<([^>]*)>")


def test_files_are_synced_before_they_are_renamed(tmp_path: Path) -> None:
    """Trace controller, supervisor, agent and ranks.

    Until fsync() of a file its content may be lost, and until fsync() of its folder its name.
    """
    require_program("strace")
    trace = tmp_path / "trace"
    train = ("train", write_script(tmp_path), "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    expect_exit(run_in(tmp_path, *STRACE, "-o", str(trace), *ORCH, *train))
    lines = trace.read_text(encoding="latin-1").splitlines()
    synced = [match[1] if (match := SYNC.search(line)) else "" for line in lines]
    renamed = set()
    for index, line in enumerate(lines):
        if match := RENAME.search(line):
            source, target = (Path(match[1] or tmp_path, name) for name in match.groups()[1:])
            if target.is_relative_to(tmp_path / "runs"):
                assert str(source) in synced[:index], source
                assert str(target.parent) in synced[index:], target
                renamed.add(target.name)
    assert renamed >= {"plan.json", "run.json", "layout.json", "supervisor.json", "outcome.json"}
