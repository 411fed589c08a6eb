"""What ranks write to standard output is on standard output, and nothing else is."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path

from orchestrator.cli.running import QUESTION
from tests.local.runs import Orch, expect_exit, start_orch, write_script
from tests.local.test_show import read_all, read_piece
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
import time
while True:
    print("here", flush=True)
    time.sleep(0.5)
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
    train = ("train", script, *two_hosts.options, "--nodes", "node0")

    def press(key: str) -> None:
        """Press Ctrl-C, and this key when orch asks."""
        process.send_signal(signal.SIGINT)
        shown = ""
        while QUESTION not in shown:
            shown += read_piece(terminal)
        os.write(terminal, key.encode())

    with start_orch(two_hosts.folder, *train, stdin=orch_end, stderr=orch_end) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        press("c\n")
        assert process.stdout.readline() == "here\n"
        press("d\n")
        assert process.wait(30) == 0
    expect_exit(two_hosts.orch("stop"))
    with start_orch(two_hosts.folder, *train, stdin=orch_end, stderr=orch_end) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        press("")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    os.close(orch_end)
    read_all(terminal)
