"""PyTorch's tests of process groups, on `ccl` and on `gloo`.

To run all of them: python -m tests.bindings.distributed_suite RANKS OUTPUT
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bindings.conftest import PROGRAMS, clean_environment, commands, kill_sessions, start

PROGRAM = str(PROGRAMS / "distributed_tests.py")
LINE = re.compile(r"^\[\d+\] (begins|ends) (test_\w+) ?(.*)$", re.M)
# backend and transport -> how the ranks are started
CONFIGURATIONS = {"gloo": "bare", "ccl-mpi": "mpi", "ccl-ofi": "bare"}
Results = dict[str, str]  # test -> "passed", "skipped why", "failed why"


def names() -> list[str]:
    env = clean_environment({"RANK": "0", "WORLD_SIZE": "2"})
    listed = subprocess.run(
        [sys.executable, PROGRAM, "gloo", "/nowhere", "--list"], env=env, check=True, capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if line.startswith("test_")]


def wait_or_kill(processes: list[subprocess.Popen], seconds: float) -> None:
    """Wait until all processes have ended; kill them after the timeout, or 5 s after the first failure."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + 5)
        time.sleep(0.1)
    kill_sessions(processes)


def run_ranks(configuration: str, ranks: int, tests: list[str], folder: Path) -> str:
    """Run tests until the first failure and return the output of the ranks."""
    backend = configuration.partition("-")[0]
    program = [PROGRAM, backend, str(folder / "shared"), *tests]
    output = folder / "output"
    processes = [
        start(command, output, env=env)
        for command, env in commands(CONFIGURATIONS[configuration], ranks, program, clean_environment({}), warm=True)
    ]
    wait_or_kill(processes, 60 + 95 * len(tests))
    return output.read_text(errors="replace")


def parse_results(text: str, ranks: int) -> Results:
    """Parse the output of the ranks. A test has failed unless all ranks have finished it."""
    results_by_test: Results = {}
    ends: dict[str, list[str]] = {}
    for verb, name, outcome in LINE.findall(text):
        ends.setdefault(name, [])
        if verb == "ends":
            ends[name].append(outcome)
    for name, outcomes in ends.items():
        failed = [outcome for outcome in outcomes if outcome.startswith("failed")]
        if failed or len(outcomes) < ranks:
            results_by_test[name] = (failed or ["failed without a message"])[0][:300]
        else:
            results_by_test[name] = min(outcomes)
    return results_by_test


def results(configuration: str, ranks: int, tests: list[str]) -> Results:
    """Run tests and restart the ranks after each failure."""
    results_by_test: Results = {}
    remaining = list(tests)
    while remaining:
        with tempfile.TemporaryDirectory() as folder:
            new_results = parse_results(run_ranks(configuration, ranks, remaining, Path(folder)), ranks)
        results_by_test |= new_results or {remaining[0]: "failed before it began"}
        remaining = [name for name in remaining if name not in results_by_test]
        print(configuration, ranks, "ranks:", len(results_by_test), "of", len(tests), flush=True)
    return results_by_test


if __name__ == "__main__":
    ranks, path = int(sys.argv[1]), Path(sys.argv[2])
    all_tests = names()
    configurations = sys.argv[3:] or list(CONFIGURATIONS)
    results_by_configuration = {
        configuration: results(configuration, ranks, all_tests) for configuration in configurations
    }
    path.write_text(json.dumps(results_by_configuration, indent=1) + "\n")
