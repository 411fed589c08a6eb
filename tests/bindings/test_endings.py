"""A rank that raises, exits, is killed or skips the shutdown must never make the others hang."""

from __future__ import annotations

import pytest

# Seconds, also on a busy machine. A rank that does not notice waits for the group's timeout of 300 s.
SOON = 90


@pytest.mark.parametrize(("launcher", "ending"), [("mpi", "kill"), ("torchrun", "raise")])
def test_the_launcher_reports_the_failure_soon(launch, launcher, ending):
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
    ids=["raise", "exit0", "kill"],
)
def test_without_a_launcher_the_other_ranks_notice_the_end(launch, ending, code, message):
    outcome = launch("endings.py", ending, launcher="bare", ranks=3, timeout=100)
    assert outcome.codes == (1, code, 1)
    assert message in outcome.text or "is gone: its process has ended" in outcome.text
    assert "allreduce #4 of group" in outcome.text
    assert "rank 1 (" in outcome.text


@pytest.mark.parametrize(("launcher", "ending"), [("mpi", "forget"), ("bare", "pending")])
def test_destroy_process_group_may_be_omitted(launch, launcher, ending):
    outcome = launch("endings.py", ending, launcher=launcher, timeout=100, warm=ending == "pending")
    assert outcome.code == 0, outcome.text
    assert outcome.seconds < SOON


def test_an_exception_after_destroy_results_in_a_failing_exit_code(launch):
    outcome = launch("endings.py", "destroy-then-raise", launcher="bare", timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON


def test_exit_handlers_of_other_libraries_cannot_abort_a_successful_process(launch):
    outcome = launch("endings.py", "abort-at-exit", launcher="bare", timeout=100, warm=False)
    assert outcome.code == 0, outcome.text


def test_a_busy_thread_of_gloo_does_not_abort_a_finished_process(run_ranks):
    run_ranks("endings.py", "busy-gloo", launcher="bare", timeout=100, expected="ends")


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
