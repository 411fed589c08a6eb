"""Programs that check all results themselves, in real ranks, the setup of groups, and shared memory."""

from __future__ import annotations

import pytest

# Program and arguments, launcher, ranks, and whether the ranks use shared memory.
RUNS = [
    ("matrix.py", "mpi", 3, "0"),
    ("matrix.py", "bare", 2, "0"),
    ("matrix.py", "bare", 3, "1"),
    ("messages.py", "mpi", 3, "0"),
    ("messages.py", "bare", 3, "0"),
    ("layouts.py", "bare", 3, "0"),
    ("layouts.py", "bare", 2, "1"),
    ("work_objects.py", "mpi", 2, "0"),
    ("work_objects.py", "bare", 2, "0"),
    ("again_and_again.py", "mpi", 3, "0"),
    ("again_and_again.py", "torchrun", 3, "0"),
    ("forked_child.py", "bare", 2, "0"),
    ("forked_child.py", "bare", 2, "1"),
    ("stress.py 400", "mpi", 3, "0"),
    ("stress.py 400", "mpi", 3, "1"),
    ("models.py checkpoint", "mpi", 2, "0"),
    ("heap.py collectives", "mpi", 3, "1"),
    ("heap.py ddp", "mpi", 2, "1"),
    ("heap.py fsdp", "mpi", 2, "1"),
    ("heap.py reuse_after_failure", "bare", 2, "1"),
    ("heap.py given_up", "bare", 2, "1"),
    ("heap.py interrupted", "bare", 2, "1"),
]


@pytest.mark.parametrize(("command", "launcher", "ranks", "shared"), RUNS)
def test_program_succeeds_on_all_ranks(run_ranks, command, launcher, ranks, shared):
    env = {"ORCH_CCL_SHARED_MEMORY": shared}
    run_ranks(*command.split(), launcher=launcher, ranks=ranks, timeout=200, env=env)


def test_setup_of_a_group_names_a_rank_that_is_absent_or_stops_responding(launch):
    env = {"CCL_ATL_TRANSPORT": "ofi"}
    outcome = launch("half_way.py", launcher="bare", ranks=1, timeout=40, env=env)
    assert outcome.code == 0, outcome.text
    for reason in (
        "no sign of rank 1",
        "rank 1 (node7, pid 4711) had started but stopped responding",
        "rank 0 (node7, pid 4711) had started but stopped responding",
    ):
        assert f"timed out after 2000 ms: {reason}" in outcome.text


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
