"""Start orch, check how it ended, and read what its runs have recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orch_node.streams import without_marks

from tests.conftest import ORCH, orch_environment
from tests.support.ports import free_port
from tests.support.processes import find_processes

Process = subprocess.CompletedProcess[str]
Orch = Callable[..., Process]
SUM_SCRIPT = """
import sys, torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item(), sys.argv[1:])
"""
# Trains until it is preempted.
CHECKPOINT_SCRIPT = """
import time, torch, torch.distributed as dist
from orch_node import preemption
step = 0
while True:
    step += 1
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01 * (1 + dist.get_rank()))
    if preemption.requested():
        print("checkpoint", step, flush=True)
        preemption.end(step)
    if step == 1:
        print("trains", flush=True)  # before the first query, a signal ends a rank at once
"""
SCRIPTS = Path(__file__).parents[1] / "scripts"


def expect_exit(process: Process, code: int = 0) -> Process:
    """Return a finished process if it has this exit code; otherwise fail with its output."""
    assert process.returncode == code, process.stdout + process.stderr
    return process


def torchrun(*arguments: str, **options: Any) -> Process:
    """Return two finished ranks of torchrun alone, which abort at times when they exit: gloo of torch 2.13."""
    for _ in range(6):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
        process = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=180, **options)
        if process.returncode == 0:
            break
    return expect_exit(process)


def start_orch(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start orch as a process in a folder; by default its output goes to pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*ORCH, *arguments], **{"cwd": folder, "env": orch_environment(folder), **pipes, **options})


def wait_for_exit(process: subprocess.Popen[str], code: int = 0, *, seconds: float = 60) -> Process:
    """Wait until orch ends and return the process if it has this exit code; kill it after so many seconds."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return expect_exit(Process(process.args, process.returncode, out or "", err or ""), code)


def run_in(folder: Path, *command: str, seconds: float = 120) -> Process:
    """Run a program in a folder, with the environment in which orch runs there."""
    environment = orch_environment(folder)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)


def carry_out(plan: str, folder: Path) -> Process:
    """Write the files of a plan that `--dry-run --json` has printed, and run its command."""
    shown = json.loads(plan)
    for path, content in shown["files"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    command, environment = shown["command"], orch_environment(folder)
    environment |= command["env"]
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command["argv"], cwd=folder, env=environment, timeout=120, **pipes)


def settings_options(**settings: object) -> list[str]:
    """Return the options that change these settings of a recipe."""
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return [word for name, text in texts.items() for word in ("--set", f"{name}={text}")]


def write_script(folder: Path, text: str = "print('hello')\n", name: str = "own.py") -> str:
    """Write a training script and return its name."""
    (folder / name).write_text(text)
    return name


def last_run(folder: Path) -> Path:
    """Return the folder of the newest run of a working directory."""
    return max((folder / "runs").iterdir())


def rank_log(run: Path, rank: int) -> str:
    """Return what a rank has printed."""
    return without_marks((run / "ranks" / f"rank-{rank}.log").read_text())


def read_events(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the recorded events of these kinds, by default of all kinds; none if there is no file yet."""
    path = run / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [event for event in events if not kinds or event["event"] in kinds]


def read_outcome(run: Path) -> dict[str, Any]:
    """Return the recorded outcome of a run."""
    return dict(json.loads((run / "outcome.json").read_text()))


def run_processes(run: Path, program: str = "") -> list[int]:
    """Return the processes of a program that mention the run."""
    return [pid for pid, command in find_processes(run.name).items() if program in command]
