"""Tensors in memory that the ranks of a host share and access in place."""

from __future__ import annotations

import pytest

SHARED = {"ORCH_CCL_SHARED_MEMORY": "1"}


@pytest.mark.parametrize(("case", "ranks"), [("collectives", 3), ("ddp", 2), ("fsdp", 2)])
def test_results_equal_those_with_ordinary_memory(run_ranks, case, ranks):
    run_ranks("heap.py", case, ranks=ranks, timeout=120, env=SHARED)


@pytest.mark.parametrize(
    "case",
    [
        "failed",  # memory to which others may still write is not reused
        "given-up",  # a late rank does not write to a tensor after the timeout of its owner
        "interrupted",  # nor after abort() during an operation
    ],
)
def test_memory_is_protected_from_late_ranks(run_ranks, case):
    run_ranks("heap.py", case, launcher="bare", timeout=120, env=SHARED)


def test_ranks_without_a_heap_print_one_warning(run_ranks):
    outcome = run_ranks("heap.py", "no-heap", launcher="bare", env=SHARED)
    warning = "has no tensors in shared memory and copies them: ftruncate: File too large"
    assert outcome.text.count(warning) == 1
