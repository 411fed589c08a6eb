"""Check that ccl passes PyTorch's tests of process groups that gloo passes, except for a list."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bindings.distributed_suite import names, results

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).parent / "distributed_suite.toml"
README = Path(__file__).parents[2] / "bindings" / "README.md"
EXCEPTIONS = tomllib.loads(LIST.read_text())
ALL = "ORCH_SUITE_ALL" in os.environ
QUICK = [
    "test_all_gather_coalesced_simple",
    "test_all_reduce_sum_complex",
    "test_all_to_all_single_unequal_split",
    "test_batch_isend_irecv_gloo_tags",
    "test_ddp_hook_parity_powerSGD",
    "test_irecv",
    "test_reduce_sum_twice",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
]

needs_torch_tests = pytest.mark.skipif(find_spec("expecttest") is None, reason="torch's tests need expecttest")


@needs_torch_tests
@pytest.mark.parametrize("ranks", [2, 4] if ALL else [2])
@pytest.mark.parametrize("configuration", ["ccl-mpi", "ccl-ofi"] if ALL else ["ccl-mpi"])
def test_ccl_passes_what_gloo_passes_except_for_the_list(configuration, ranks):
    tests = names() if ALL else QUICK
    gloo = results("gloo", ranks, tests)
    passed = [name for name in tests if gloo[name] == "passed"]
    ccl = results(configuration, ranks, passed)
    failed = {name: outcome for name, outcome in ccl.items() if outcome != "passed"}
    assert set(failed) == set(EXCEPTIONS) & set(passed), failed


def test_the_readme_contains_the_list():
    text = README.read_text()
    rows = "".join(f"| {name} | {entry['reason']} |\n" for name, entry in EXCEPTIONS.items())
    assert rows in text
