"""What ranks print, on the screen of whoever watches the run."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit

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
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as watched:
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
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as watched:
        os.close(theirs)
        said = read_all(ours)
    assert watched.returncode == 0, said
    assert "rank 0 \\x1b[31mbegins\r\n" in said
    assert "rank 0 ends\r\n" in said
    assert "rank 1" not in said
    assert "2 ranks on node0, 1 thread each: mpirun, gloo, stack current (-v: why)\r\n" in said
    assert "preload:" not in said


WAITS = """
import os, time
print("begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def test_lines_that_are_lost_are_told_at_once(tmp_path: Path) -> None:
    """The program that reads the log ends: so it would where memory runs out."""
    (tmp_path / "waits.py").write_text(WAITS)
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "train", "waits.py", "--ppn", "1"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as watched:
        assert watched.stderr is not None
        seen: list[str] = []
        end = threading.Timer(20, (tmp_path / "go").touch)  # if nothing is told
        for line in watched.stderr:
            seen.append(line)
            if line == "begins\n":
                os.kill(reader_of_logs(watched.pid), signal.SIGKILL)
                end.start()
            if "may be late or missing" in line:
                break
        run = next(line for line in seen if line.startswith("run: ")).split()[1]
        assert seen[-1].startswith("output of rank 0 may be late or missing: ")
        assert seen[-1].endswith(f" Complete output: orch logs {run}\n")
        end.cancel()
        (tmp_path / "go").touch()
        assert "late or missing" not in watched.stderr.read(), "once"
    assert watched.returncode == 0


def reader_of_logs(parent: int) -> int:
    """The process id of a child of orch's."""
    children = [
        int(child)
        for thread in Path(f"/proc/{parent}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    (found,) = (one for one in children if b"\0logs\0" in Path(f"/proc/{one}/cmdline").read_bytes())
    return found


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
    assert "expected a rank, all or none" in orch(*TRAIN, "--show", "x").stderr
    wrong = orch(*TRAIN, "--show", "2")
    assert (wrong.returncode, "the run has ranks 0 to 1" in wrong.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()


BAR = """
import os, sys, time
for step in range(10_000):
    sys.stderr.write(f"\\r{step} of 10000 <bar>")
    if os.path.exists("go"):
        break
    time.sleep(0.05)
print("\\rlast state", file=sys.stderr)
"""


def test_a_progress_bar_is_seen_on_a_terminal_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    shown = watch_until("of 10000 <bar>", tmp_path, "train", "bar.py", "--ppn", "1")
    assert "last state\r\n" in shown
    assert "<bar>\r\n" not in shown, "each state takes the place of the one before"
    assert "\\x0d" not in shown


def test_a_progress_bar_is_seen_in_logs_while_it_runs(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    expect_exit(orch("train", "bar.py", "--ppn", "1", "--detach"))
    shown = watch_until("of 10000 <bar>", tmp_path, "logs", "--follow")
    assert "[0 node0] last state\r\n" in shown
    assert orch("logs").stdout == "[0 node0] last state\n", "as a terminal shows it"


SILENT = """
import os, time
import torch
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
while not os.path.exists("go"):
    parameter.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.05)
"""


def test_the_steps_of_a_script_that_prints_nothing_are_shown(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT)
    shown = watch_until(" steps, ", tmp_path, "train", "silent.py", "--ppn", "1")
    assert re.search(r"\d+ steps, \d+\.\d(/s| s each)", shown)


def watch_until(text: str, folder: Path, *arguments: str) -> str:
    """Run orch on a terminal, let the script end once `text` is shown, and return all output."""
    terminal, orch_end = pty.openpty()
    environment = {**orch_environment(folder), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *arguments],
        cwd=folder,
        env=environment,
        stdout=orch_end,
        stderr=orch_end,
    ) as watched:
        os.close(orch_end)
        give_up = threading.Timer(60, watched.kill)
        give_up.start()
        shown = ""
        while text not in shown and (piece := read_piece(terminal)):
            shown += piece
        (folder / "go").touch()
        shown += read_all(terminal)
        give_up.cancel()
    assert watched.returncode == 0, shown
    return shown


def read_piece(terminal: int) -> str:
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:  # its other end is closed
        return ""


def test_stop_names_the_run_and_says_whether_it_had_ended(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    started = orch("train", "bar.py", "--ppn", "1", "--detach")
    run = next((tmp_path / "runs").glob("*-bar-*")).name
    assert started.returncode == 0, started.stderr
    assert orch("stop").stdout.startswith(f"Stopped run {run}.\n")
    again = orch("stop")
    assert again.stdout.startswith(f"Run {run} had already ended (stopped); nothing of it was")


def test_the_runs_folder_and_a_misspelled_script_are_understood(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    wrong = orch("train", "trian.py")
    assert (wrong.returncode, "Did you mean train.py?" in wrong.stderr) == (2, True)
    for command in ("show", "logs"):
        shown = orch("runs", command, "last", "--runs-dir", "elsewhere")
        assert f"There are no runs in {tmp_path}/elsewhere." in shown.stderr
