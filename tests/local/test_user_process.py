"""Check that orch does not interfere with the process of a user's script."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.runs import Orch, expect_exit, last_run, rank_log, read_events, read_outcome, write_script

GLOO = ("--ppn", "2", "--backend", "gloo")
ORCH_MODULES = ("containers", "story", "training", "facts", "tail", "processes", "rank", "rank_main", "wrapper")
ORCH_PROGRAMS = ("supervise", "supervisor", "warden", "agent", "cleanup", "program", "protocol", "node", "pod")
PRINT_IMPORTS = """
import sys
LOADED = sorted({name.partition(".")[0] for name in sys.modules})
import json, os

import torch  # modules that torch imports are not counted
bare = json.loads(os.popen(f"env -u PYTHONPATH {sys.executable} -c 'import sys, json, torch;"
                           f" print(json.dumps(sorted(sys.modules)))'").read())
known = {name.partition(".")[0] for name in bare} | set(sys.stdlib_module_names)
print("MODULES", sorted(set(LOADED) - known - {"__main__", "__mp_main__"}))
print("PATH", json.dumps([sys.path[0], sys.path[-1]]))

import containers, story, facts, training
print("LOCAL", all(module.USERS for module in (containers, story, facts, training)))
sys.path.append(os.path.join(os.path.dirname(__file__), "more"))
import agent, tail
print("APPENDED", agent.USERS and tail.USERS)
importable = []
for name in NAMES:
    try:
        __import__(name)
        importable.append(name)
    except ImportError:
        pass
print("IMPORTABLE", importable)
"""


def value_of(log_text: str, name: str) -> str:
    """Return what a script has printed after a name."""
    (line,) = [line for line in log_text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(f"{name} ")


def test_script_imports_its_modules_and_none_of_orch(orch: Orch, tmp_path: Path) -> None:
    local, appended = ("containers", "story", "facts", "training"), ("agent", "tail")
    (tmp_path / "more").mkdir()
    for path in (*local, *(f"more/{name}" for name in appended)):
        (tmp_path / f"{path}.py").write_text("USERS = True\n")
    names = tuple(name for name in ORCH_MODULES + ORCH_PROGRAMS if name not in local + appended)
    script = write_script(tmp_path, PRINT_IMPORTS.replace("NAMES", repr(names)))
    expect_exit(orch("train", script, "--ppn", "1", "--backend", "gloo"))
    text = rank_log(last_run(tmp_path), 0)
    assert value_of(text, "MODULES") == "['orch_kernels', 'orch_node']"
    assert value_of(text, "LOCAL") == value_of(text, "APPENDED") == "True"
    assert value_of(text, "IMPORTABLE") == "[]"
    first, last = json.loads(value_of(text, "PATH"))
    assert (first, Path(last).name) == (str(tmp_path), "lib"), "the path of orch is last"


# Handles a signal of the batch system, which the launcher forwards, unless it has a handler, like Lightning does. Then
# rank 1 fails, and the supervisor requests the stack trace of rank 0.
HANDLE_SIGNAL = """
import os, signal, sys, time
import torch.distributed as dist

called = []
if signal.getsignal(signal.SIGUSR1) in (None, signal.SIG_DFL):
    signal.signal(signal.SIGUSR1, lambda number, frame: (called.append(number), print("CALLED")))
dist.barrier()
if dist.get_rank() == 0:
    launcher = os.getppid()
    while not open(f"/proc/{launcher}/comm").read().startswith("mpiexec"):
        launcher = int(open(f"/proc/{launcher}/stat").read().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGUSR1)
while not called:
    time.sleep(0.01)
time.sleep(3)  # longer than the interval between two checks of orch
dist.barrier()
if dist.get_rank() == 1:
    sys.exit(3)
time.sleep(100)
"""


def test_signal_handler_of_a_script_is_called_and_stacks_are_traced(orch: Orch, tmp_path: Path) -> None:
    """Call the script like a program of orch, which is traced and ended nevertheless."""
    script = write_script(tmp_path, HANDLE_SIGNAL, "node.py")
    process = expect_exit(orch("train", script, *GLOO), 1)
    assert "rank 1 on node0 exited with code 3" in process.stderr
    run = last_run(tmp_path)
    assert rank_log(run, 0).count("CALLED") == 1, "stack traces use another signal"
    assert str(tmp_path / script) in (run / "stacks" / "rank-0.txt").read_text()
    assert read_outcome(run)["nodes"]["node0"]["left"] == []


INVALID_REPORTS = r"""
import json, os, torch
import torch.distributed as dist
from orch_node import report
report("progress", step=3)
report("progress", phase="[/x]\x1b[2J", step=1, steps=2, loss=torch.tensor(1.5))
for step in range(3):
    report("progress", phase="train", step="three", loss="low")
report("exit", code=9, rank=0)
report("progress", phase="train", step=2, steps=2, time=5.0, event="exit")
report("own", deep=json.loads("[" * 500 + "]" * 500), big=10**30, object=object())
print("\x1b[31mred\x1b[0m")
dist.barrier()
report("result", after={"[/f1]\x1b": 81.2, "em": "x"})
if os.environ["RANK"] == "1":
    os.write(int(os.environ["ORCH_EVENTS_FD"]), b'{"event": "exit", "rank"' + b"\n")
"""


def test_script_with_invalid_reports_completes(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, INVALID_REPORTS), *GLOO))
    notes = [line for line in process.stderr.splitlines() if line.startswith("note: ")]
    assert [line.partition(" could")[0] for line in notes] == [
        "note: 1 event without a rank",
        "note: 5 events of rank 0",
        "note: 5 events of rank 1",
    ]
    assert "progress: step is 'three', not a number" in notes[1]
    assert "exit is an event of orch's own" in notes[1]
    assert "loss 1.5000" in process.stderr
    assert "\x1b" not in process.stdout + process.stderr
    assert "[/f1]\\x1b" in process.stderr
    run = last_run(tmp_path)
    text = rank_log(run, 1)
    assert text.count("orch: report(): progress: step is 'three'") == 1
    assert "event, time: orch's own" in text
    assert [event["code"] for event in read_events(run, "exit")] == [0, 0]
    assert "\n".join(notes) in expect_exit(orch("runs", "show")).stdout
    assert "\\x1b[31mred" in orch("logs").stdout
