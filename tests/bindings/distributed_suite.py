"""PyTorch's own tests of process groups, on `ccl` and beside it on `gloo`.

By hand, all of them:  python -m tests.bindings.distributed_suite RANKS OUTPUT
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bindings.conftest import PROGRAMS, clean_environment, commands

PROGRAM = str(PROGRAMS / "distributed_tests.py")
LINE = re.compile(r"^\[\d+\] (begins|ends) (test_\w+) ?(.*)$", re.M)
# backend and transport -> how its ranks are started
WAYS = {"gloo": "bare", "ccl-mpi": "mpi", "ccl-ofi": "bare"}
Results = dict[str, str]  # test -> "passed", "skipped why", "failed why"


def names() -> list[str]:
    env = clean_environment({"RANK": "0", "WORLD_SIZE": "2"})
    listed = subprocess.run(
        [sys.executable, PROGRAM, "gloo", "/nowhere", "--list"], env=env, check=True, capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if line.startswith("test_")]


def stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def wait(processes: list[subprocess.Popen], seconds: float) -> None:
    """Until all have ended, or one has failed and the others had a moment to say what they see."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            until = min(until, time.monotonic() + 5)
        time.sleep(0.1)
    stop(processes)


def launched(way: str, ranks: int, tests: list[str], folder: Path) -> str:
    """What the ranks print while they run these tests, as far as they come."""
    backend = way.partition("-")[0]
    program = [PROGRAM, backend, str(folder / "shared"), *tests]
    processes = []
    with (folder / "output").open("wb") as output:
        for command, env in commands(WAYS[way], ranks, program, clean_environment({})):
            processes.append(
                subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            )
        wait(processes, 60 + 95 * len(tests))
    return (folder / "output").read_text(errors="replace")


def told(text: str, ranks: int) -> Results:
    """A test that only some ranks ended has failed; of one that failed, the first reason counts."""
    out: Results = {}
    ends: dict[str, list[str]] = {}
    for verb, name, how in LINE.findall(text):
        ends.setdefault(name, [])
        if verb == "ends":
            ends[name].append(how)
    for name, hows in ends.items():
        failed = [how for how in hows if how.startswith("failed")]
        if failed or len(hows) < ranks:
            out[name] = (failed or ["failed without a word"])[0][:300]
        else:
            out[name] = min(hows)
    return out


def results(way: str, ranks: int, tests: list[str]) -> Results:
    """Ranks are started anew after each test that fails."""
    out: Results = {}
    left = list(tests)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            here = told(launched(way, ranks, left, Path(folder)), ranks)
        out |= here or {left[0]: "failed before it began"}
        left = [name for name in left if name not in out]
        print(way, ranks, "ranks:", len(out), "of", len(tests), flush=True)
    return out


if __name__ == "__main__":
    ranks, path = int(sys.argv[1]), Path(sys.argv[2])
    every = names()
    ways = sys.argv[3:] or list(WAYS)
    found = {way: results(way, ranks, every) for way in ways}
    path.write_text(json.dumps(found, indent=1) + "\n")
