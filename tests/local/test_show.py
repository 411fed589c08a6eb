"""Check what a user who watches a run sees of the output of its ranks."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit, start_orch, write_script

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
WAIT = """
import os, time
print("begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
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
TRAIN_SILENTLY = """
import os, time
import torch
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
while not os.path.exists("go"):
    parameter.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.05)
"""
ONE_RANK, TWO_RANKS = ("--ppn", "1"), ("--ppn", "2", "--backend", "gloo")


def start_watched(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start orch with one pipe for what it shows of the ranks and what it says itself."""
    return start_orch(folder, *arguments, stderr=subprocess.STDOUT)


def test_lines_are_shown_while_the_run_continues(tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, BEGIN_AND_END), *TWO_RANKS, "--show", "all")
    with start_watched(tmp_path, *train) as process:
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


def test_terminal_shows_lines_of_rank_0_and_decisions_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    terminal, orch_end = pty.openpty()
    train = ("train", write_script(tmp_path, BEGIN_AND_END), *TWO_RANKS)
    with start_orch(tmp_path, *train, stdout=orch_end, stderr=orch_end) as process:
        os.close(orch_end)
        shown = read_all(terminal)
    assert process.returncode == 0, shown
    assert "rank 0 \\x1b[31mbegins\r\n" in shown
    assert "rank 0 ends\r\n" in shown
    assert "rank 1" not in shown
    assert "2 ranks on node0, 1 thread each: mpirun, gloo, stack current (-v: why)\r\n" in shown
    assert "preload:" not in shown


def test_lost_lines_are_reported_once_and_at_once(tmp_path: Path) -> None:
    """Kill the program that reads the log, as the kernel may do when memory is low."""
    with start_watched(tmp_path, "train", write_script(tmp_path, WAIT), *ONE_RANK) as process:
        assert process.stdout is not None
        shown: list[str] = []
        give_up = threading.Timer(20, (tmp_path / "go").touch)
        for line in process.stdout:
            shown.append(line)
            if line == "begins\n":
                os.kill(find_log_reader(process.pid), signal.SIGKILL)
                give_up.start()
            if "may be late or missing" in line:
                break
        run = next(line for line in shown if line.startswith("run: ")).split()[1]
        assert shown[-1].startswith("output of rank 0 may be late or missing: ")
        assert shown[-1].endswith(f" Complete output: orch logs {run}\n")
        give_up.cancel()
        (tmp_path / "go").touch()
        assert "late or missing" not in process.stdout.read()
    assert process.returncode == 0


def find_log_reader(parent: int) -> int:
    """Return the id of the child process that reads the logs of ranks."""
    children = [
        int(child)
        for thread in Path(f"/proc/{parent}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    (reader,) = (pid for pid in children if b"\0logs\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return reader


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


def test_progress_bar_is_shown_on_a_terminal_while_it_changes(tmp_path: Path) -> None:
    shown = watch_until("of 10000 <bar>", tmp_path, "train", write_script(tmp_path, PROGRESS_BAR), *ONE_RANK)
    assert "last state\r\n" in shown
    assert "<bar>\r\n" not in shown, "each state replaces the one before"
    assert "\\x0d" not in shown


def test_progress_bar_is_shown_in_logs_while_it_changes(orch: Orch, tmp_path: Path) -> None:
    expect_exit(orch("train", write_script(tmp_path, PROGRESS_BAR), *ONE_RANK, "--detach"))
    shown = watch_until("of 10000 <bar>", tmp_path, "logs", "--follow")
    assert "[0 node0] last state\r\n" in shown
    assert orch("logs").stderr == "[0 node0] last state\n", "logs have what a terminal would show"


def test_steps_of_a_script_that_prints_nothing_are_shown(tmp_path: Path) -> None:
    shown = watch_until(" steps, ", tmp_path, "train", write_script(tmp_path, TRAIN_SILENTLY), *ONE_RANK)
    assert re.search(r"\d+ steps, \d+\.\d(/s| s each)", shown)


def test_invalid_value_of_show_is_refused(orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, ""), *TWO_RANKS, "--show")
    assert "expected a rank, all or none" in orch(*train, "x").stderr
    assert "the run has ranks 0 to 1" in expect_exit(orch(*train, "2"), 2).stderr
    assert not (tmp_path / "runs").exists()


def test_misspelled_script_and_empty_runs_folder_are_named(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "", "train.py")
    assert "Did you mean train.py?" in expect_exit(orch("train", "trian.py"), 2).stderr
    for command in (("runs", "show"), ("logs",)):
        shown = orch(*command, "last", "--runs-dir", "elsewhere")
        assert f"There are no runs in {tmp_path}/elsewhere." in shown.stderr
