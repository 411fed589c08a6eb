"""Tensors in memory that the ranks of a host share: they are read and written where they are."""

from __future__ import annotations

import pytest

SHARED = {"ORCH_CCL_SHARED_MEMORY": "1"}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("how", ["collectives", "routes", "ddp", "fsdp", "forked"])
def test_it_brings_what_other_memory_brings(launch, how, ranks):
    outcome = launch("heap.py", how, ranks=ranks, timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == ranks


def test_what_others_may_still_write_to_is_not_used_again(launch):
    outcome = launch("heap.py", "failed", by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


def test_nobody_writes_to_a_tensor_after_its_rank_has_given_up(launch):
    outcome = launch("heap.py", "given-up", by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


def test_nobody_writes_to_a_tensor_after_an_abort_in_the_midst(launch):
    outcome = launch("heap.py", "interrupted", by="bare", timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


def test_only_used_memory_is_mapped_and_core_dumps_leave_it_out(launch):
    outcome = launch("heap.py", "mapped", by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


def test_ranks_that_cannot_have_it_go_without_in_words(launch):
    outcome = launch("heap.py", "no-heap", by="bare", timeout=60, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2
    words = "has no tensors in shared memory and copies them: ftruncate: File too large"
    assert outcome.text.count(words) == 1


def test_without_shared_memory_there_is_none_in_words(launch):
    outcome = launch("heap.py", "alone", timeout=60, env={"ORCH_CCL_SHARED_MEMORY": "0"})
    assert outcome.code == 0, outcome.text
    words = "has no shared memory for tensors"
    assert outcome.text.count(words) == 2
