"""Check what a user sees of the output of ranks: on which stream, while the run continues, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pexpect

from orchestrator.cli.running import QUESTION
from tests.conftest import ORCH, orch_environment
from tests.local.runs import Orch, expect_exit, start_orch, write_script
from tests.local.workspaces import Workspace

SCRIPT = """
import subprocess, sys
print("result", 1)
print("warning", file=sys.stderr)
print("half a ", end="", flush=True)
print("remark", file=sys.stderr, flush=True)
print("line")
subprocess.run(["sh", "-c", "echo child; echo complaint >&2"])
print("no end", end="")
"""
TURNS = """
import os, sys, time
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
print("remark", file=sys.stderr, flush=True)
for turn in range(3):
    for rank in (0, 1):
        dist.barrier()
        if rank == int(os.environ["RANK"]):
            print(turn, flush=True)
        time.sleep(0.2)
"""
ENDLESS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    print("here", flush=True)
    time.sleep(0.5)
sys.exit(3)
"""
RESULTS = ["result 1", "half a line", "child", "no end"]
REMARKS = {"warning", "remark", "complaint"}
ONE_RANK = ("--ppn", "1", "--backend", "gloo")


def test_results_are_on_standard_output_and_all_else_on_standard_error(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, SCRIPT), *ONE_RANK))
    assert process.stdout.splitlines() == RESULTS
    assert set(process.stderr.splitlines()) > REMARKS
    assert "done in" in process.stderr
    assert "note: no training step was seen" in process.stderr
    attached = expect_exit(orch("attach"))
    assert attached.stdout.splitlines() == RESULTS
    assert set(attached.stderr.splitlines()) > REMARKS
    logs = expect_exit(orch("logs"))
    assert logs.stdout.splitlines() == [f"[0 node0] {line}" for line in RESULTS]
    assert {f"[0 node0] {line}" for line in REMARKS} <= set(logs.stderr.splitlines())
    records = map(json.loads, expect_exit(orch("logs", "--json")).stdout.splitlines())
    assert [record["line"] for record in records if record["stream"] == "stdout"] == RESULTS
    as_json = expect_exit(orch("attach", "--json"))
    assert json.loads(as_json.stdout)["state"] == "done"
    assert set(RESULTS) < set(as_json.stderr.splitlines())


def test_output_of_hosts_is_on_both_streams_and_later_in_the_order_of_time(two_hosts: Workspace) -> None:
    script = write_script(two_hosts.folder, TURNS, "turns.py")
    process = expect_exit(two_hosts.orch("train", script, *two_hosts.options, "--show", "all"))
    assert sorted(process.stdout.splitlines()) == sorted(f"[{rank}] {turn}" for rank in (0, 1) for turn in range(3))
    assert {f"[{rank}] remark" for rank in (0, 1)} < set(process.stderr.splitlines())
    run = json.loads(expect_exit(two_hosts.orch("runs", "show", "--json")).stdout)["run_id"]
    other_controller = ("--runs-dir", "elsewhere", *two_hosts.options[2:])
    shown = two_hosts.orch("runs", "show", run[:-1], *other_controller, "--json")
    assert json.loads(expect_exit(shown).stdout)["run_id"] == run, "the nodes know a run by a prefix of its id"
    expected = [f"{rank} {turn}" for turn in range(3) for rank in (0, 1)]
    for command in (("attach", "--show", "all"), ("logs",)):
        lines = expect_exit(two_hosts.orch(*command)).stdout.splitlines()
        assert [f"{line[1]} {line.split()[-1]}" for line in lines] == expected, lines


def test_ctrl_c_asks_what_to_do_with_a_run_on_hosts(two_hosts: Workspace) -> None:
    script = write_script(two_hosts.folder, ENDLESS, "endless.py")
    terminal, orch_end = pty.openpty()
    end = two_hosts.folder / "end"
    train = ("train", script, *two_hosts.options, "--nodes", "node0", "--", str(end))

    def press(key: str) -> None:
        """Press Ctrl-C, and this key when orch asks."""
        process.send_signal(signal.SIGINT)
        shown = ""
        while QUESTION not in shown:
            shown += os.read(terminal, 4096).decode(errors="replace")
        os.write(terminal, key.encode())

    with start_orch(two_hosts.folder, *train, stdin=orch_end, stderr=orch_end) as process:
        assert process.stdout.readline() == "here\n"
        press("c\n")
        assert process.stdout.readline() == "here\n"
        press("d\n")
        assert process.wait(30) == 0
    expect_exit(two_hosts.orch("stop"))
    with start_orch(two_hosts.folder, *train, stdin=orch_end, stderr=orch_end) as process:
        assert process.stdout.readline() == "here\n"
        press("")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    with start_orch(two_hosts.folder, *train, stdin=orch_end, stderr=orch_end) as process:
        assert process.stdout.readline() == "here\n"
        press("")
        end.touch()
        assert process.wait(60) == 1, "the question is over when the run has ended"
    os.close(orch_end)
    os.close(terminal)


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


def test_lines_are_shown_while_the_run_continues(tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, BEGIN_AND_END), "--ppn", "2", "--backend", "gloo", "--show", "all")
    with start_orch(tmp_path, *train, stderr=subprocess.STDOUT) as process:
        missing = {f"[{rank}] rank {rank} \\x1b[31mbegins\n" for rank in (0, 1)}
        for line in process.stdout:
            missing.discard(line)
            if not missing:
                break
        assert not missing, "both lines come before the script may end"
        (tmp_path / "go").touch()
        assert {"[0] rank 0 ends", "[1] rank 1 ends"} <= set(process.stdout.read().splitlines())
    assert process.returncode == 0


def test_progress_bar_is_shown_on_a_terminal_while_it_changes(orch: Orch, tmp_path: Path) -> None:
    """Run orch on a terminal, and let the script end once the bar is shown."""
    arguments = [*ORCH[1:], "train", write_script(tmp_path, PROGRESS_BAR), "--ppn", "1"]
    environment = {**orch_environment(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    process = pexpect.spawn(ORCH[0], arguments, cwd=tmp_path, env=environment, timeout=60, encoding="utf-8")
    process.expect_exact("of 10000 <bar>")
    shown = process.before + process.after
    (tmp_path / "go").touch()
    process.expect(pexpect.EOF)
    shown += process.before
    process.close()
    assert process.exitstatus == 0, shown
    assert "1 rank on node0, " in shown
    assert " stack current (-v: why)\r\n" in shown
    assert "preload:" not in shown
    assert "last state\r\n" in shown
    assert orch("logs").stderr == "[0 node0] last state\n", "logs have what a terminal would show"
    assert "<bar>\r\n" not in shown, "each state replaces the one before"
    assert "\\x0d" not in shown
