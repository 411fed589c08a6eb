"""Check that values in the store and in shared memory are not trusted."""

from __future__ import annotations

import random

import pytest

# A group that is created without init_process_group() does not choose an interface.
SHARED = {"ORCH_CCL_SHARED_MEMORY": "1", "FI_TCP_IFACE": "lo"}
# A case of programs/hostile.py -> why the file is rejected.
FILES = {
    "another-user": "belongs to another user",
    "no-seals": "wrong seals",
    "may-shrink": "wrong seals",
    "not-writable": "wrong seals",
    "shorter": "wrong size",
    "longer": "wrong size",
    "another-name": "wrong name",
    "another-token": "wrong token",
    "another-process": "belongs to another process",
    "ordinary-file": "wrong name",
    "fifo": "not a memory file",
    "standard-input": "is not the group's memory",
    "nothing-there": "No such file or directory",
    "no-numbers": "invalid id",
    "negative": "invalid id",
    "too-long": "invalid id",
    "one-more-word": "invalid id",
    "empty": "another number of segments",
}
OFFSETS = ["in-the-header", "at-the-end", "beyond", "far-beyond", "wraps"]


@pytest.mark.parametrize(("case", "reason"), FILES.items(), ids=FILES)
def test_a_forged_memory_file_is_rejected_and_the_ranks_use_oneccl(run_ranks, case, reason):
    outcome = run_ranks("hostile.py", case, launcher="bare", env=SHARED)
    if "cannot be tried" not in outcome.text:
        assert reason in outcome.text  # one warning; the program checks that no group uses shared memory


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_offset_outside_the_heap_fails_on_the_rank_that_reads_it(run_ranks, offset):
    run_ranks("hostile.py", f"offset-{offset}", launcher="bare", env=SHARED)


def test_a_value_damaged_at_random_crashes_and_stops_no_rank(run_ranks):
    seed = str(random.randrange(10**6))
    outcome = run_ranks("hostile.py", "random", launcher="bare", timeout=120, env=SHARED | {"FIRST_SEED": seed})
    assert "forged" in outcome.text
