"""Every collective: its errors, and its behaviour with each kind of failure and with long tensors."""

from __future__ import annotations

import os

import pytest

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
# Kind, mode, launcher, and whether the ranks use shared memory. Hydra ends all ranks if one is dead: test_endings.py.
FAILURES = [
    ("timeout", "async", "mpi", "0"),
    ("timeout", "sync", "bare", "0"),
    ("timeout", "async", "bare", "1"),
    ("peer-dead", "sync", "bare", "0"),
    ("peer-dead", "async", "bare", "1"),
    ("peer-gone", "async", "bare", "0"),
    ("peer-gone", "async", "bare", "1"),
    ("wrong-size", "sync", "bare", "0"),
    ("crosswise", "async", "mpi", "0"),
    ("crosswise", "sync", "bare", "0"),
    ("crosswise", "async", "bare", "1"),
    ("callback", "sync", "bare", "0"),
]


def test_a_group_of_one_rank_does_not_start_oneccl(run_ranks):
    assert "CCL_WARN" not in run_ranks("matrix.py", launcher="bare", ranks=1).text


@pytest.mark.parametrize(("kind", "mode", "launcher", "shared"), FAILURES)
def test_every_operation_with_one_kind_of_failure(run_ranks, kind, mode, launcher, shared):
    env = {"ORCH_CCL_SHARED_MEMORY": shared} | ({"ORCH_CCL_CHECK": "1"} if kind == "wrong-size" else {})
    survivors = 1 if kind in ("peer-dead", "peer-gone") else 2
    run_ranks("kinds.py", kind, mode, launcher=launcher, timeout=120, env=env, count=survivors)


def test_long_tensors_are_sent_in_pieces(run_ranks):
    env = {"ORCH_CCL_MOST_ELEMENTS": "4096"}
    run_ranks("large.py", "70001", *LARGE, ranks=3, timeout=120, env=env, expected="is right", count=3 * len(LARGE))


@pytest.mark.skipif("ORCH_LARGE" not in os.environ, reason="needs ORCH_LARGE and 20 GB of memory (make test-all)")
@pytest.mark.parametrize("launcher", ["mpi", "bare"])
@pytest.mark.parametrize("operation", LARGE)
def test_more_than_an_int_can_count(run_ranks, operation, launcher):
    run_ranks("large.py", str(2**31 + 4096), operation, launcher=launcher, timeout=500, expected="is right")


def test_ranks_with_different_calls_are_named(launch):
    env = {"ORCH_CCL_CHECK": "1"}
    outcome = launch("endings.py", "in-other-collective", "6", launcher="mpi", env=env)
    assert outcome.code != 0
    assert "calls broadcast Float[1000] from rank 0, this rank calls allreduce Float[1000] by SUM" in outcome.text
