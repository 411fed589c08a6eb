"""What ranks print, on the screen of whoever watches the run."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import orch_environment

Orch = Callable[..., subprocess.CompletedProcess[str]]
TALKS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group()
print("rank", dist.get_rank(), "\\x1b[31mbegins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
dist.all_reduce(torch.ones(1))
print("rank", dist.get_rank(), "ends", end="")  # a last line without an end
"""
TRAIN = ("train", "talks.py", "--ppn", "2", "--backend", "gloo")


def test_lines_come_while_the_run_lives(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *TRAIN, "--show", "all"],
        cwd=tmp_path, env=orch_environment(tmp_path), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as watched:  # fmt: skip
        assert watched.stderr is not None
        begun = {f"[{rank}] rank {rank} \\x1b[31mbegins\n" for rank in (0, 1)}
        for line in watched.stderr:
            begun.discard(line)
            if not begun:
                break
        assert not begun, "before it was told to end"
        (tmp_path / "go").touch()
        rest = watched.stderr.read().splitlines()
    assert watched.returncode == 0
    assert {"[0] rank 0 ends", "[1] rank 1 ends"} <= set(rest)


def test_on_a_terminal_rank_0_speaks_and_the_decisions_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    (tmp_path / "go").touch()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *TRAIN],
        cwd=tmp_path, env=orch_environment(tmp_path), stdout=subprocess.DEVNULL, stderr=theirs,
    ) as watched:  # fmt: skip
        os.close(theirs)
        said = read_all(ours)
    assert watched.returncode == 0, said
    assert "rank 0 \\x1b[31mbegins\r\n" in said
    assert "rank 0 ends\r\n" in said
    assert "rank 1" not in said
    assert "2 ranks on node0, 1 thread each: mpirun, gloo, stack current (-v: why)\r\n" in said
    assert "preload:" not in said


def read_all(terminal: int) -> str:
    found = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # its other end is closed
            piece = b""
        if not piece:
            os.close(terminal)
            return found.decode()
        found += piece


def test_what_show_does_not_know_is_refused(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    assert "it is the number of a rank, all, or none" in orch(*TRAIN, "--show", "x").stderr
    wrong = orch(*TRAIN, "--show", "2")
    assert (wrong.returncode, "the run has ranks 0 to 1" in wrong.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()
