"""Check that orch does not interfere with the process of a user's script, its cores and its shared memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, rank_log, read_events, read_outcome, write_script
from tests.local.workspaces import Workspace

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


def test_script_imports_its_modules_and_none_of_orch(tmp_path: Path) -> None:
    local, appended = ("containers", "story", "facts", "training"), ("agent", "tail")
    (tmp_path / "more").mkdir()
    for path in (*local, *(f"more/{name}" for name in appended)):
        (tmp_path / f"{path}.py").write_text("USERS = True\n")
    names = tuple(name for name in ORCH_MODULES + ORCH_PROGRAMS if name not in local + appended)
    workspace = Workspace(tmp_path, "--ppn", "1", "--backend", "gloo")
    cell = workspace.train_text(PRINT_IMPORTS.replace("NAMES", repr(names)))
    assert cell.printed("MODULES", 0) == "['orch_kernels', 'orch_node']"
    assert cell.printed("LOCAL", 0) == cell.printed("APPENDED", 0) == "True"
    assert cell.printed("IMPORTABLE", 0) == "[]"
    first, last = json.loads(cell.printed("PATH", 0))
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
    sys.exit(256)  # 0 for the system
time.sleep(100)
"""


def test_signal_handler_of_a_script_is_called_and_stacks_are_traced(orch: Orch, tmp_path: Path) -> None:
    """Call the script like a program of orch, which is traced and ended nevertheless."""
    script = write_script(tmp_path, HANDLE_SIGNAL, "node.py")
    assert "rank 1 on node0 exited with code 1" in expect_exit(orch("train", script, *GLOO), 1).stderr
    run = last_run(tmp_path)
    assert rank_log(run, 0).count("CALLED") == 1, "stack traces use another signal"
    assert str(tmp_path / script) in (run / "stacks" / "rank-0.txt").read_text()
    assert read_outcome(run)["nodes"]["node0"]["left"] == []


FAILS_WITH_OPEN_FILE = """
import sys
metrics = open("metrics.csv", "w")
metrics.write("1,0.5")
sys.excepthook = lambda kind, error, trace: print("HANDLED", kind.__name__, trace.tb_frame.f_code.co_name)
raise ValueError
"""


def test_script_that_fails_keeps_what_it_has_written_and_handles_its_exception(orch: Orch, tmp_path: Path) -> None:
    script = write_script(tmp_path, FAILS_WITH_OPEN_FILE)
    process = expect_exit(orch("train", script, "--ppn", "1", "--backend", "gloo"), 1)
    assert (tmp_path / "metrics.csv").read_text() == "1,0.5"
    assert process.stdout == "HANDLED ValueError <module>\n"


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


# Cores.


CORES_SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path

import torch
import torch.distributed as dist


def cores(task):
    lines = (Path(task) / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


if __name__ == "__main__":
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # a parallel region
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    work.get_future().wait()
    show = [sys.executable, "-c", "import os; print(','.join(map(str, sorted(os.sched_getaffinity(0)))))"]
    time.sleep(1)  # until the threads of the backend have their names
    found = {(task / "comm").read_text().strip(): cores(task) for task in Path("/proc/self/task").iterdir()}
    numbers = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    print("FOUND", json.dumps({
        "threads": torch.get_num_threads(), "cores": found, "subprocess": numbers,
        "tokenizers": os.environ.get("TOKENIZERS_PARALLELISM"),
    }), flush=True)
"""
USABLE = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(USABLE) < 2, reason="needs two cores")
def test_all_that_a_rank_starts_may_use_all_of_its_cores(tmp_path: Path) -> None:
    cell = Workspace(tmp_path, "--ppn", "1", "--backend", "ccl").train_text(CORES_SCRIPT)
    result = json.loads(cell.printed("FOUND", 0))
    numbers = [int(number) for number in result["subprocess"].split(",")]
    assert len(numbers) == result["threads"] > 1
    assert set(numbers) <= set(USABLE)
    assert len(set(result["cores"].values())) == 1, result
    assert set(result["cores"].values()) <= {f"{numbers[0]}-{numbers[-1]}", result["subprocess"]}
    assert "ccl-comm" in result["cores"]
    assert result["tokenizers"] is None


# Shared memory, where users have data too.

# Reads data, and leaves a file of a library and a file of unknown origin.
SHARED_MEMORY_SCRIPT = """
import sys, time
import torch
name = sys.argv[1]
data = open(f"/dev/shm/data-{name}", "rb")
cache = open(f"/dev/shm/cache-{name}", "wb")
leftover = open(f"/dev/shm/torch_{name}_0", "wb")
time.sleep(2)
assert data.read() == b"precious"
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Yield a name for files in shared memory, and delete them afterwards."""
    yield f"{os.getpid()}_77"
    for path in Path("/dev/shm").glob(f"*{os.getpid()}_77*"):
        path.unlink()


def test_only_segments_of_the_run_are_deleted_from_shared_memory(orch: Orch, tmp_path: Path, name: str) -> None:
    names = (f"data-{name}", f"cache-{name}", f"torch_{name}_0")
    data, cache, library_file = (Path("/dev/shm", file) for file in names)
    data.write_bytes(b"precious")
    script = write_script(tmp_path, SHARED_MEMORY_SCRIPT)
    process = expect_exit(orch("train", script, "--ppn", "1", "--backend", "gloo", "--", name))
    assert data.read_bytes() == b"precious"
    assert cache.exists(), "its owner is unknown"
    report = f"node0: left in /dev/shm: {cache} ("
    assert report in process.stderr
    assert not library_file.exists()
    run = last_run(tmp_path)
    (pid,) = (event["pid"] for event in read_events(run, "joined"))
    assert not [path for path in os.listdir("/dev/shm") if f"LIB_{pid}_" in path], "OpenMP's registration is deleted"
    assert report in orch("clean").stdout
    assert cache.exists()
    cache.unlink()
    orch("clean")
    assert list(run.glob("shm-*")) == []
