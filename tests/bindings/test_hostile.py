"""Check that values in the store and in shared memory are not trusted."""

from __future__ import annotations

import random

import pytest

# A group that is created without init_process_group() does not choose an interface.
SHARED = {"ORCH_CCL_SHARED_MEMORY": "1", "FI_TCP_IFACE": "lo"}


@pytest.mark.parametrize(
    ("case", "reason"), [("another-process", "belongs to another process"), ("empty", "another number of segments")]
)
def test_a_forged_memory_file_is_rejected_and_the_ranks_use_oneccl(run_ranks, case, reason):
    """Check that no group uses shared memory, and that one warning says why; memory_file.cpp forges more files."""
    assert reason in run_ranks("hostile.py", case, launcher="bare", env=SHARED).text


def test_an_offset_outside_the_heap_fails_on_the_rank_that_reads_it(run_ranks):
    run_ranks("hostile.py", "offsets", launcher="bare", env=SHARED)


def test_a_value_damaged_at_random_crashes_and_stops_no_rank(run_ranks):
    seed = str(random.randrange(10**6))
    outcome = run_ranks("hostile.py", "random", launcher="bare", timeout=120, env=SHARED | {"FIRST_SEED": seed})
    assert "forged" in outcome.text
