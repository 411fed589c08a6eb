"""A rank that ends early must never make the others hang, and values in shared memory and the store are not trusted."""

from __future__ import annotations

import random

import pytest

# Seconds, also on a busy machine. A rank that does not notice waits for the group's timeout of 300 s.
SOON = 90


@pytest.mark.parametrize(
    ("launcher", "ending"), [("mpi", "kill"), ("torchrun", "raise"), ("bare", "destroy-then-raise")]
)
def test_a_failure_results_in_a_failing_exit_code_soon(launch, launcher, ending):
    outcome = launch("endings.py", ending, launcher=launcher, ranks=3, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON
    assert "got through" not in outcome.text


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("raise", 1, "has left the job with exit code 1"),
        ("exit0", 0, "has left the job with exit code 0"),
        ("kill", -9, "is gone: its process has ended"),
    ],
)
def test_without_a_launcher_the_other_ranks_notice_the_end(launch, ending, code, message):
    outcome = launch("endings.py", ending, launcher="bare", ranks=3, timeout=100)
    assert outcome.codes == (1, code, 1)
    assert message in outcome.text or "is gone: its process has ended" in outcome.text
    assert "allreduce #4 of group" in outcome.text
    assert "rank 1 (" in outcome.text


@pytest.mark.parametrize(
    ("ending", "launcher", "warm"),
    [
        ("forget", "mpi", False),  # destroy_process_group() may be omitted
        ("pending", "bare", True),  # also during an operation
        ("abort-at-exit", "bare", False),  # exit handlers of other libraries do not abort a finished process
        ("busy-gloo", "bare", True),  # nor does a thread of gloo that still works
    ],
)
def test_finished_processes_end_without_an_error(launch, ending, launcher, warm):
    outcome = launch("endings.py", ending, launcher=launcher, timeout=100, warm=warm)
    assert outcome.code == 0, outcome.text
    assert outcome.seconds < SOON
    if ending == "busy-gloo":
        assert outcome.text.count("ends") == 2, outcome.text


def test_the_timeout_of_the_group_applies_to_a_collective_and_names_only_the_rank_that_is_late_for_it(launch):
    """Let rank 1 be late also for the collective before."""
    outcome = launch("endings.py", "late-twice", "5", launcher="mpi", ranks=3, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON
    assert "DistBackendError" in outcome.text
    assert "allreduce #5 of group" in outcome.text
    assert "timed out after 5000 ms" in outcome.text
    assert "missing: rank 1 (" in outcome.text
    assert "missing: ranks" not in outcome.text


@pytest.mark.parametrize(("ending", "message"), [("late", "missing: rank 1 ("), ("kill", "its process has ended")])
def test_a_late_or_dead_rank_is_named_with_shared_memory(launch, ending, message):
    env = {"ORCH_CCL_SHARED_MEMORY": "1"}
    outcome = launch("endings.py", ending, "4", launcher="bare", ranks=3, env=env)
    assert "DistBackendError" in outcome.text
    assert message in outcome.text


def test_a_rank_in_another_collective_is_reported_without_a_launcher(launch):
    # oneCCL reports an error, or the operation times out. A broadcast may even succeed, but not the next operation.
    outcome = launch("endings.py", "in-other-collective", "4", launcher="bare", timeout=100)
    assert outcome.codes == (1, 1), outcome.text
    assert outcome.seconds < SOON
    assert "DistBackendError: ccl: allreduce #4 of group" in outcome.text
    assert outcome.text.count("DistBackendError: ccl: ") == 2


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
