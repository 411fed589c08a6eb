"""Collectives through memory that the ranks of a host share."""

from __future__ import annotations

import pytest

SHARED = {"ORCH_CCL_SHARED_MEMORY": "1"}


@pytest.mark.parametrize(("ranks", "threads"), [(3, "1"), (2, "3")], ids=["one-thread", "three-threads"])
def test_results_are_the_same_on_all_ranks(run_ranks, ranks, threads):
    run_ranks("shared.py", "same-bits", ranks=ranks, timeout=120, env=SHARED | {"ORCH_CCL_THREADS": threads})


@pytest.mark.parametrize(
    ("case", "operation"),
    [
        ("other-call", "allreduce #1 of group"),
        ("sum-or-average", "allreduce #1 of group"),
        ("two-roots", "broadcast #1 of group"),
    ],
)
def test_ranks_with_different_calls_are_named_without_a_check(launch, case, operation):
    outcome = launch("shared.py", case, launcher="bare", env=SHARED)
    assert outcome.codes == (1, 1)
    assert operation in outcome.text
    assert ") calls another collective, or this one with a different size" in outcome.text


def test_ranks_without_memory_use_oneccl_and_print_one_warning(run_ranks):
    """Use shared memory by default."""
    env = {"ORCH_CCL_SHARED_MEMORY": ""}
    outcome = run_ranks("shared.py", "no-memory", launcher="bare", timeout=120, warm=False, env=env)
    assert outcome.text.count("does not use shared memory: ftruncate: File too large") == 1
    assert outcome.text.count("shared memory:") == 1


def test_ranks_without_a_heap_print_one_warning(run_ranks):
    outcome = run_ranks("heap.py", "no_heap", launcher="bare", env=SHARED)
    warning = "has no tensors in shared memory and copies them: ftruncate: File too large"
    assert outcome.text.count(warning) == 1
