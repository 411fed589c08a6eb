"""Check what a user who watches a run sees of the output of its ranks."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from pathlib import Path

from tests.conftest import orch_environment
from tests.local.runs import Orch, start_orch, write_script

BEGIN_AND_END = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group()
print("rank", dist.get_rank(), "\\x1b[31mbegins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
dist.all_reduce(torch.ones(1))
print("rank", dist.get_rank(), "ends", end="")  # the last line is incomplete
"""
PROGRESS_BAR = """
import os, sys, time
for step in range(10_000):
    sys.stderr.write(f"\\r{step} of 10000 <bar>")
    if os.path.exists("go"):
        break
    time.sleep(0.05)
print("\\rlast state", file=sys.stderr)
"""
ONE_RANK, TWO_RANKS = ("--ppn", "1"), ("--ppn", "2", "--backend", "gloo")


def test_lines_are_shown_while_the_run_continues(tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, BEGIN_AND_END), *TWO_RANKS, "--show", "all")
    with start_orch(tmp_path, *train, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        missing = {f"[{rank}] rank {rank} \\x1b[31mbegins\n" for rank in (0, 1)}
        for line in process.stdout:
            missing.discard(line)
            if not missing:
                break
        assert not missing, "both lines come before the script may end"
        (tmp_path / "go").touch()
        assert {"[0] rank 0 ends", "[1] rank 1 ends"} <= set(process.stdout.read().splitlines())
    assert process.returncode == 0


def read_piece(terminal: int) -> str:
    """Return some output, or '' once the other end is closed."""
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:
        return ""


def read_all(terminal: int) -> str:
    """Return all output until the other end is closed, and close the terminal."""
    output = ""
    while piece := read_piece(terminal):
        output += piece
    os.close(terminal)
    return output


def watch_until(text: str, folder: Path, *arguments: str) -> str:
    """Run orch on a terminal, let the script end once the text is shown, and return all output."""
    terminal, orch_end = pty.openpty()
    environment = {**orch_environment(folder), "TERM": "xterm", "COLUMNS": "100"}
    with start_orch(folder, *arguments, env=environment, stdout=orch_end, stderr=orch_end) as process:
        os.close(orch_end)
        give_up = threading.Timer(60, process.kill)
        give_up.start()
        shown = ""
        while text not in shown and (piece := read_piece(terminal)):
            shown += piece
        (folder / "go").touch()
        shown += read_all(terminal)
        give_up.cancel()
    assert process.returncode == 0, shown
    return shown


def test_progress_bar_is_shown_on_a_terminal_while_it_changes(orch: Orch, tmp_path: Path) -> None:
    shown = watch_until("of 10000 <bar>", tmp_path, "train", write_script(tmp_path, PROGRESS_BAR), *ONE_RANK)
    assert "1 rank on node0, " in shown
    assert " stack current (-v: why)\r\n" in shown
    assert "preload:" not in shown
    assert "last state\r\n" in shown
    assert orch("logs").stderr == "[0 node0] last state\n", "logs have what a terminal would show"
    assert "<bar>\r\n" not in shown, "each state replaces the one before"
    assert "\\x0d" not in shown
