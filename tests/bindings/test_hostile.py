"""Check that values in the store and in shared memory are not trusted."""

from __future__ import annotations

import random

import pytest

# A group that is created without init_process_group() does not choose an interface.
SHARED = {"ORCH_CCL_SHARED_MEMORY": "1", "FI_TCP_IFACE": "lo"}


@pytest.mark.parametrize(
    ("case", "reason"),
    [("another-process", "belongs to another process"), ("empty", "another number of segments"), ("offsets", "")],
)
def test_a_forged_memory_file_or_offset_is_rejected(run_ranks, case, reason):
    """Check that groups do without a forged file, with one warning, and that a forged offset fails on its reader.

    memory_file.cpp forges more files.
    """
    assert reason in run_ranks("hostile.py", case, launcher="bare", env=SHARED).text


def test_a_value_damaged_at_random_crashes_and_stops_no_rank(run_ranks):
    seed = str(random.randrange(10**6))
    outcome = run_ranks("hostile.py", "random", launcher="bare", timeout=120, env=SHARED | {"FIRST_SEED": seed})
    assert "forged" in outcome.text
