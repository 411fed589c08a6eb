"""What a user's script finds in its process: nothing of orch's in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import orch_environment
from tests.local.test_train import last_run, log

Orch = Callable[..., subprocess.CompletedProcess[str]]

# Names that modules and programs of orch have, or had.
OURS = (
    "containers",
    "story",
    "training",
    "facts",
    "tail",
    "processes",
    "rank",
    "rank_main",
    "wrapper",
    "supervise",
    "supervisor",
    "warden",
    "agent",
    "cleanup",
    "program",
    "protocol",
    "node",
    "pod",
)
LOOKS = """
import sys
BEFORE = sorted({name.partition(".")[0] for name in sys.modules})
import json, os

import torch  # what it brings along is not orch's doing
bare = json.loads(os.popen(f"{sys.executable} -c 'import sys, json, torch;"
                           f" print(json.dumps(sorted(sys.modules)))'").read())
known = {name.partition(".")[0] for name in bare} | set(sys.stdlib_module_names)
print("MODULES", sorted(set(BEFORE) - known - {"__main__", "__mp_main__"}))
print("PATH", json.dumps([sys.path[0], sys.path[-1]]))

import containers, story, facts, training
print("OWN", all(one.USERS for one in (containers, story, facts, training)))
sys.path.append(os.path.join(os.path.dirname(__file__), "more"))
import agent, tail
print("APPENDED", agent.USERS and tail.USERS)
found = []
for name in NAMES:
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
print("FOUND", found)
"""


def said(text: str, word: str) -> Any:
    (line,) = [one for one in text.splitlines() if one.startswith(f"{word} ")]
    return line.removeprefix(f"{word} ")


def test_a_script_imports_its_own_modules_and_none_of_orch(orch: Orch, tmp_path: Path) -> None:
    beside, appended = ("containers", "story", "facts", "training"), ("agent", "tail")
    (tmp_path / "more").mkdir()
    for name in beside:
        (tmp_path / f"{name}.py").write_text("USERS = True\n")
    for name in appended:
        (tmp_path / "more" / f"{name}.py").write_text("USERS = True\n")
    names = tuple(name for name in OURS if name not in beside + appended)
    (tmp_path / "looks.py").write_text(LOOKS.replace("NAMES", repr(names)))
    done = orch("train", "looks.py", "--ppn", "1", "--backend", "gloo")
    assert done.returncode == 0, done.stdout + done.stderr
    text = log(last_run(tmp_path), 0)
    assert said(text, "MODULES") == "['orch_node']"
    assert said(text, "OWN") == said(text, "APPENDED") == "True"
    assert said(text, "FOUND") == "[]"
    first, last = json.loads(said(text, "PATH"))
    assert (first, Path(last).name) == (str(tmp_path), "lib"), "ours comes last"


@pytest.mark.parametrize("name", ["node.py", "agent.py"])
def test_a_script_that_is_called_like_a_program_of_orch(orch: Orch, tmp_path: Path, name: str) -> None:
    """It has stack traces, and it is ended."""
    (tmp_path / name).write_text(
        "import time, torch.distributed as dist\n"
        "def waits_for_ever():\n    time.sleep(100)\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 1: raise ValueError('boom')\n"
        "waits_for_ever()\n"
    )
    done = orch("train", name, "--ppn", "2", "--backend", "gloo")
    assert done.returncode == 1
    assert "rank 1 on node0 exited with code 1" in done.stdout
    run = last_run(tmp_path)
    assert "in waits_for_ever" in (run / "stacks" / "rank-0.txt").read_text()
    end = json.loads((run / "outcome.json").read_text())["nodes"]["node0"]
    assert end["left"] == []


# A script, or a library such as Lightning, that takes a signal of the batch system for itself where
# nobody else has; then rank 1 fails, and rank 0 is asked for its stack traces.
HANDLES = """
import os, signal, sys, time
import torch.distributed as dist

NUMBER = signal.SIGNAL
called = []
if signal.getsignal(NUMBER) in (None, signal.SIG_DFL):
    signal.signal(NUMBER, lambda number, frame: (called.append(number), print("CALLED")))
dist.barrier()
if NUMBER == signal.SIGUSR2:  # a batch system to every process; hydra would die of this one
    os.kill(os.getpid(), NUMBER)
    os.kill(os.getppid(), NUMBER)
elif dist.get_rank() == 0:  # to the launcher, which passes it on
    above = os.getppid()
    while not open(f"/proc/{above}/comm").read().startswith("mpiexec"):
        above = int(open(f"/proc/{above}/stat").read().rpartition(")")[2].split()[1])
    os.kill(above, NUMBER)
while not called:
    time.sleep(0.01)
time.sleep(3)  # longer than between two looks of orch
dist.barrier()
if dist.get_rank() == 1:
    sys.exit(3)
time.sleep(100)
"""


def handles(orch: Orch, folder: Path, name: str) -> Path:
    (folder / "handles.py").write_text(HANDLES.replace("signal.SIGNAL", f"signal.{name}"))
    done = orch("train", "handles.py", "--ppn", "2", "--backend", "gloo")
    assert done.returncode == 1
    assert "rank 1 on node0 exited with code 3" in done.stdout, done.stdout
    return last_run(folder)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_handler_of_the_script_s_is_its_own(orch: Orch, tmp_path: Path, name: str) -> None:
    run = handles(orch, tmp_path, name)
    assert log(run, 0).count("CALLED") == 1, "and not once more, for stack traces"
    assert "handles.py" in (run / "stacks" / "rank-0.txt").read_text(), "which are there"


def test_a_script_that_takes_the_signal_of_the_stack_traces(tmp_path: Path) -> None:
    (tmp_path / "handles.py").write_text(HANDLES.replace("signal.SIGNAL", "signal.SIGUSR2"))
    environment = orch_environment(tmp_path) | {"ORCH_STACK_SIGNAL": "USR2"}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", "train", "handles.py", "--ppn", "2", "--backend", "gloo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 1
    run = last_run(tmp_path)
    text = log(run, 0)
    assert text.count("CALLED") == 1, "orch leaves it alone"
    assert "orch: the script handles SIGUSR2 itself" in text
    assert '"event": "unanswered"' in (run / "events.jsonl").read_text()
    assert not (run / "stacks" / "rank-0.txt").exists()


def test_a_signal_that_is_none_is_told(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    plan = orch("train", "x.py", "--ppn", "1", "--dry-run").stdout
    done = subprocess.run(
        ["sh"],
        input=plan,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "ORCH_STACK_SIGNAL": "SIGNOTHING"},
    )
    assert done.returncode == 1
    outcome = json.loads((last_run(tmp_path) / "outcome.json").read_text())
    assert "ORCH_STACK_SIGNAL is 'SIGNOTHING'" in outcome["first_failure"]["text"]


TALKS = """
import torch
import torch.distributed as dist

dist.broadcast(torch.ones(4), 0)
dist.all_reduce(torch.ones(4))
print("done")
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_oneccl_says_nothing_of_settings_that_are_orch_s(orch: Orch, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    words = ("--ppn", "2", "--backend", "ccl", "--launcher", launcher)
    assert orch("train", "talks.py", *words).returncode == 0
    run = last_run(tmp_path)
    for rank in (0, 1):
        assert log(run, rank) == "done\n"


def test_oneccl_s_warnings_of_a_user_s_own_settings_stay(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    plan = orch("train", "talks.py", "--ppn", "2", "--backend", "ccl", "--dry-run").stdout
    own = {"CCL_RS_CHUNK_COUNT": "2", "CCL_MAX_SHORT_SIZE": "1024"}
    done = subprocess.run(
        ["sh"], input=plan, cwd=tmp_path, text=True, capture_output=True, timeout=120, env={**os.environ, **own}
    )
    assert done.returncode == 0, done.stderr
    run = last_run(tmp_path)
    warned = [line.partition("|CCL_WARN| ")[2] for line in log(run, 0).splitlines()]
    assert [line[:40] for line in warned if line] == [
        "value of CCL_MAX_SHORT_SIZE changed to b",
        "value of CCL_RS_CHUNK_COUNT changed to b",
    ]


REPORTS_NONSENSE = r"""
import json, os, torch
import torch.distributed as dist
from orch_node import report
report("progress", step=3)
report("progress", phase="[/x]\x1b[2J", step=1, steps=2, loss=torch.tensor(1.5))
for step in range(3):
    report("progress", phase="train", step="three", loss="low")
report("exit", code=9, rank=0)
report("outcome", outcome={"state": "failed"})
report("launched", attempt=7)
report("progress", phase="train", step=2, steps=2, time=5.0, event="exit")
report("own", deep=json.loads("[" * 500 + "]" * 500), big=10**30, object=object())
print("\x1b[31mred\x1b[0m")
dist.barrier()
report("result", after={"[/f1]\x1b": 81.2, "em": "x"})
if os.environ["RANK"] == "1":
    os.write(int(os.environ["ORCH_EVENTS_FD"]), b'{"event": "exit", "rank"' + b"\n")
"""


def test_a_script_that_reports_nonsense_trains_to_its_end(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "nonsense.py").write_text(REPORTS_NONSENSE)
    done = orch("train", "nonsense.py", "--ppn", "2", "--backend", "gloo")
    assert done.returncode == 0, done.stdout + done.stderr
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert [line.partition(" could")[0] for line in notes] == [
        "note: 1 event without a rank",
        "note: 7 events of rank 0",
        "note: 7 events of rank 1",
    ]
    assert "progress: step is 'three', not a number" in notes[1]
    assert "exit is an event of orch's own" in notes[1]
    assert "loss 1.5000" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "[/f1]\\x1b" in done.stdout
    run = last_run(tmp_path)
    text = log(run, 1)
    assert text.count("orch: report(): progress: step is 'three'") == 1
    assert "event, time: orch's own" in text
    told = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [one["code"] for one in told if one["event"] == "exit"] == [0, 0]
    assert len([one for one in told if one["event"] in ("outcome", "launched")]) == 1
    shown = orch("runs", "show")
    assert shown.returncode == 0
    assert "\n".join(notes) in shown.stdout
    assert "\\x1b[31mred" in orch("logs").stdout
