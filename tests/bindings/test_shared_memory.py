"""Collectives through memory that the ranks of a host share."""

from __future__ import annotations

import pytest

SHARED = {"ORCH_CCL_SHARED_MEMORY": "1"}
DEFAULT = {"ORCH_CCL_SHARED_MEMORY": ""}


@pytest.mark.parametrize(("by", "ranks"), [("mpi", 2), ("mpi", 3), ("torchrun", 2)])
def test_every_collective(launch, by, ranks):
    outcome = launch("matrix.py", by=by, ranks=ranks, timeout=200, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("checked") == ranks


def test_a_thousand_mixed_rounds_on_two_groups(launch):
    outcome = launch("stress.py", ranks=3, timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_are_in_the_order_of_the_ranks(launch, ranks):
    outcome = launch("shared.py", "same-bits", ranks=ranks, timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_numbers_arrive_by_every_route(launch, ranks):
    outcome = launch("shared.py", "every-route", ranks=ranks, timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == ranks


def test_ranks_that_call_differently_are_named_unasked(launch):
    outcome = launch("shared.py", "other-call", by="bare", timeout=60, env=SHARED)
    assert outcome.codes == (1, 1)
    assert ") calls another collective, or this one with a different size" in outcome.text


def test_two_ranks_that_broadcast_as_root_are_reported(launch):
    outcome = launch("shared.py", "two-roots", by="bare", timeout=60, env=SHARED)
    assert outcome.codes == (1, 1)
    assert "broadcast #1 of group" in outcome.text
    assert ") calls another collective, or this one with a different size" in outcome.text


@pytest.mark.parametrize(
    ("forbidden", "reason"),
    [("no-memory", "ftruncate: File too large"), ("no-memfd", "memfd_create: Operation not permitted")],
)
def test_ranks_without_memory_fall_back_with_one_warning(launch, forbidden, reason):
    outcome = launch("shared.py", forbidden, by="bare", ranks=3, timeout=120, warm=False, env=DEFAULT)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 3
    assert outcome.text.count(f"does not use shared memory: {reason}") == 1
    assert outcome.text.count("shared memory:") == 1


def test_shared_memory_is_on_by_default(launch):
    outcome = launch("shared.py", "default", by="bare", timeout=120, env=DEFAULT)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == 2


@pytest.mark.parametrize("kind", ["timeout", "peer-dead", "crosswise"])
def test_every_operation_in_one_kind_of_trouble(launch, kind):
    outcome = launch("kinds.py", kind, "async", by="bare", timeout=120, env=SHARED)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == (1 if kind == "peer-dead" else 2)


@pytest.mark.parametrize(("how", "words"), [("late", "missing: rank 1 ("), ("kill", "is gone: its process has ended")])
def test_a_late_or_dead_rank_is_named(launch, how, words):
    outcome = launch("endings.py", how, "4", by="bare", ranks=3, timeout=60, env=SHARED)
    assert "DistBackendError" in outcome.text
    assert words in outcome.text
