"""A rank that raises, exits, is killed or forgets to say goodbye must never hang the others."""

from __future__ import annotations

import pytest

HOW_RANK_1_ENDS = ("raise", "exit3", "kill")
# Seconds, on a machine that has other work, too; who does not notice waits for the group's 300.
SOON = 90
NO_CORE_FILE = 3  # exit code of dumping.py


@pytest.mark.parametrize("how", HOW_RANK_1_ENDS)
@pytest.mark.parametrize("by", ["mpi", "torchrun"])
def test_the_launcher_reports_the_failure_soon(launch, by, how):
    outcome = launch("endings.py", how, by=by, ranks=3, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON
    assert "got through" not in outcome.text


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raise", 1, "has left the job with exit code 1"),
        ("exit3", 3, "has left the job with exit code 3"),
        ("exit0", 0, "has left the job with exit code 0"),
        ("kill", -9, "is gone: its process has ended"),
    ],
)
def test_without_any_launcher_the_others_notice_by_themselves(launch, how, code, words):
    outcome = launch("endings.py", how, by="bare", ranks=3, timeout=100)
    assert outcome.codes == (1, code, 1)
    assert words in outcome.text or "is gone: its process has ended" in outcome.text
    assert "allreduce #4 of group" in outcome.text
    assert "rank 1 (" in outcome.text


def test_a_rank_that_dumps_core_counts_as_dead(launch):
    outcome = launch("dumping.py", by="bare", timeout=100)
    if outcome.codes[0] == NO_CORE_FILE:
        pytest.skip("no core files are written here, or too soon: " + outcome.text)
    assert outcome.codes[0] == 0, outcome.text
    assert "is gone: its process has ended" in outcome.text
    assert "while it dumps" in outcome.text


@pytest.mark.parametrize("how", ["forget", "pending"])
@pytest.mark.parametrize("by", ["mpi", "torchrun", "bare"])
def test_forgetting_destroy_is_harmless(launch, by, how):
    outcome = launch("endings.py", how, by=by, timeout=100, warm=how == "pending")
    assert outcome.code == 0, outcome.text
    assert outcome.seconds < SOON


@pytest.mark.parametrize("how", ["all-raise", "destroy-then-raise"])
@pytest.mark.parametrize("by", ["mpi", "bare"])
def test_exit_codes_do_not_lie(launch, by, how):
    outcome = launch("endings.py", how, by=by, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON


@pytest.mark.parametrize("by", ["mpi", "bare"])
def test_what_other_libraries_do_at_exit_does_not_end_a_success_in_an_abort(launch, by):
    outcome = launch("endings.py", "abort-at-exit", by=by, timeout=100, warm=False)
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("by", ["mpi", "bare"])
def test_a_thread_of_gloo_does_not_abort_a_process_that_has_finished(launch, by):
    outcome = launch("endings.py", "busy-gloo", by=by, timeout=100)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("ends") == 2


def test_a_rank_that_ends_later_is_waited_for(launch):
    outcome = launch("endings.py", "slow-end", timeout=100)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("ends") == 2


@pytest.mark.parametrize("by", ["mpi", "torchrun"])
def test_the_timeout_of_the_group_holds_inside_a_collective(launch, by):
    outcome = launch("endings.py", "late", "4", by=by, ranks=3, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON
    assert "DistBackendError" in outcome.text
    assert "allreduce #4 of group" in outcome.text
    assert "timed out after 4000 ms" in outcome.text
    assert "missing: rank 1 (" in outcome.text


def test_a_rank_that_has_waited_before_is_not_called_missing(launch):
    outcome = launch("endings.py", "late-twice", "5", by="torchrun", ranks=3, timeout=100)
    assert outcome.code != 0
    assert "allreduce #5 of group" in outcome.text
    assert "missing: rank 1 (" in outcome.text
    assert "missing: ranks" not in outcome.text


def test_a_rank_in_another_collective_ends_the_job(launch):
    """MPI itself may notice first, and ends it in its own words."""
    outcome = launch("endings.py", "in-other-collective", "4", by="mpi", ranks=2, timeout=100)
    assert outcome.code != 0
    assert outcome.seconds < SOON


@pytest.mark.parametrize("size", ["1000", "3000000"])
def test_a_rank_in_another_collective_is_told_without_a_launcher(launch, size):
    """By oneCCL's error or the timeout. A broadcast may even get through, not what follows."""
    outcome = launch("endings.py", "in-other-collective", "4", size, by="bare", timeout=100)
    assert outcome.codes == (1, 1), outcome.text
    assert outcome.seconds < SOON
    assert "DistBackendError: ccl: allreduce #4 of group" in outcome.text
    assert outcome.text.count("DistBackendError: ccl: ") == 2
