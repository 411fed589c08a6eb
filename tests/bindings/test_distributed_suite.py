"""Check that ccl passes PyTorch's tests of process groups that gloo passes, except for a list in bindings/README.md.

ORCH_SUITE_ALL=1 runs all tests, also on gloo; otherwise ccl runs a selection.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS, clean_environment, commands, start, wait_all

PROGRAM = str(PROGRAMS / "distributed_tests.py")
LINE = re.compile(r"^\[\d+\] (begins|ends) (test_\w+) ?(.*)$", re.M)
README = Path(__file__).parents[2] / "bindings" / "README.md"
EXCEPTIONS = set(re.findall(r"^\| (test_\w+) \|", README.read_text(), re.M))
ALL = "ORCH_SUITE_ALL" in os.environ
QUICK = [
    "test_all_gather_coalesced_simple",
    "test_all_reduce_sum_complex",
    "test_all_to_all_single_unequal_split",
    "test_batch_isend_irecv_gloo_tags",
    "test_irecv",
    "test_reduce_sum_twice",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
]
Results = dict[str, str]  # test -> "passed", "skipped why", "failed why"


def names() -> list[str]:
    command = [sys.executable, PROGRAM, "gloo", "/nowhere", "--list"]
    env = clean_environment({"RANK": "0", "WORLD_SIZE": "2"})
    listed = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("test_")]


def parse_results(text: str, ranks: int) -> Results:
    """Parse the output of the ranks. A test has failed unless all ranks have finished it."""
    outcomes: dict[str, list[str]] = {}
    for verb, name, outcome in LINE.findall(text):
        outcomes.setdefault(name, []).extend([outcome] if verb == "ends" else [])
    results = {}
    for name, ends in outcomes.items():
        failed = [outcome for outcome in ends if outcome.startswith("failed")]
        is_finished = len(ends) == ranks and not failed
        results[name] = min(ends) if is_finished else (failed or ["failed without a message"])[0]
    return results


def results(backend: str, launcher: str, ranks: int, tests: list[str], folder: Path) -> Results:
    """Run tests and restart the ranks after each failure."""
    results_by_test: Results = {}
    while remaining := [name for name in tests if name not in results_by_test]:
        run = folder / f"{backend}-{launcher}-{len(results_by_test)}"
        run.mkdir()
        program = [PROGRAM, backend, str(run), *remaining]
        processes = [
            start(command, run / "output", env=env)
            for command, env in commands(launcher, ranks, program, clean_environment({}), warm=True)
        ]
        wait_all(processes, 60 + 95 * len(remaining))
        new_results = parse_results((run / "output").read_text(errors="replace"), ranks)
        results_by_test |= new_results or {remaining[0]: "failed before it began"}
    return results_by_test


@pytest.mark.skipif(find_spec("expecttest") is None, reason="torch's tests need expecttest")
@pytest.mark.parametrize("ranks", [2, 4] if ALL else [2])
@pytest.mark.parametrize("launcher", ["mpi", "bare"])
def test_ccl_passes_what_gloo_passes_except_for_the_list(launcher, ranks, tmp_path):
    tests = QUICK  # gloo passes them
    if ALL:
        gloo = results("gloo", "bare", ranks, names(), tmp_path)
        tests = [name for name, outcome in gloo.items() if outcome == "passed"]
    ccl = results("ccl", launcher, ranks, tests, tmp_path)
    failed = {name: outcome for name, outcome in ccl.items() if outcome != "passed"}
    assert set(failed) == EXCEPTIONS & set(tests), failed
