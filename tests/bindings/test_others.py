"""What the test suites of Intel's bindings and of PyTorch found, and all of the same kind."""

from __future__ import annotations

import os

import pytest

ALL = "ORCH_KINDS_ALL" in os.environ
LARGE = (
    "broadcast",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "all_gather_uneven",
    "gather",
    "scatter",
    "all_to_all",
    "send",
)
KINDS = ("timeout", "peer-dead", "wrong-root", "wrong-size", "crosswise", "callback")
# In CI each kind once on each transport; by hand (ORCH_KINDS_ALL=1) all of the table.
CELLS = [
    (kind, how, by)
    for kind in KINDS
    for how in ("sync", "async")
    for by in ("mpi", "bare")
    if (kind, by) != ("peer-dead", "mpi")  # hydra ends all ranks: test_endings.py
    and (ALL or (how == "async") == (by == "mpi") or kind == "peer-dead")
]


@pytest.mark.parametrize("by", ["mpi", "bare"])
@pytest.mark.parametrize("ranks", [2, 3] if ALL else [3])
def test_messages_lists_and_callbacks(launch, by, ranks):
    outcome = launch("messages.py", ranks=ranks, by=by, timeout=120)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == ranks


@pytest.mark.parametrize(("kind", "how", "by"), CELLS)
def test_every_operation_in_one_kind_of_trouble(launch, kind, how, by):
    env = {"ORCH_CCL_CHECK": "1"} if kind == "wrong-size" else {}
    outcome = launch("kinds.py", kind, how, by=by, timeout=120, env=env)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("fine") == (1 if kind == "peer-dead" else 2)


@pytest.mark.parametrize("by", ["mpi", "bare"])
def test_what_is_too_long_for_one_call_travels_in_pieces(launch, by):
    env = {"ORCH_CCL_MOST_ELEMENTS": "4096"}
    outcome = launch("large.py", "70001", *LARGE, ranks=3, by=by, timeout=120, env=env)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("is right") == 3 * len(LARGE)


@pytest.mark.skipif("ORCH_LARGE" not in os.environ, reason="needs ORCH_LARGE and 20 GB of memory (make test-all)")
@pytest.mark.parametrize("by", ["mpi", "bare"])
@pytest.mark.parametrize("operation", LARGE)
def test_more_than_an_int_can_count(launch, operation, by):
    outcome = launch("large.py", str(2**31 + 4096), operation, by=by, timeout=500)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("is right") == 2


def test_ranks_that_call_differently_are_named(launch):
    env = {"ORCH_CCL_CHECK": "1"}
    outcome = launch("endings.py", "in-other-collective", "6", by="mpi", timeout=60, env=env)
    assert outcome.code != 0
    assert "calls broadcast Float[1000] from rank 0, this rank calls allreduce Float[1000] by SUM" in outcome.text
