"""What somebody else writes to the store or to shared memory is checked before it is used."""

from __future__ import annotations

import pytest

# A group made without init_process_group() does not know the interface of a machine with several.
SHARED = {"ORCH_CCL_SHARED_MEMORY": "1", "FI_TCP_IFACE": "lo"}
# A case of programs/hostile.py, and why the file is refused.
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
    "empty": "invalid id",
}
OFFSETS = ["in-the-header", "at-the-end", "beyond", "far-beyond", "wraps"]


@pytest.mark.parametrize(("case", "reason"), FILES.items(), ids=FILES)
def test_a_forged_memory_file_is_refused_and_the_ranks_go_without(launch, case, reason):
    outcome = launch("hostile.py", case, by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2
    if "cannot be tried" not in outcome.text:
        assert reason in outcome.text  # one warning; the program checks that both groups go without


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_offset_outside_the_heap_is_an_error_of_the_rank_that_reads_it(launch, offset):
    outcome = launch("hostile.py", f"offset-{offset}", by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2
