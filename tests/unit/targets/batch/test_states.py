"""Check how the states of jobs are described."""

from __future__ import annotations

import pytest

from orchestrator.targets.batch import states
from tests.support.slurm_jobs import make_job


def test_waiting_job_is_reported_with_its_reason() -> None:
    message = states.describe_waiting(make_job("PENDING", "Priority", "2026-01-02T03:04:05"))
    assert message == (
        "job 12 waits: jobs with a higher priority come first (Priority); expected to start at 2026-01-02T03:04:05"
    )
    down = make_job("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-3]")
    assert "down, drained or reserved (ReqNodeNotAvail, Una" in states.describe_waiting(down)
    held = make_job("PENDING", "launch failed requeued held")
    assert "scontrol release" in states.describe_waiting(held)
    assert states.describe_waiting(make_job("PENDING", "SomethingNew")) == "job 12 waits: SomethingNew"


def test_job_that_can_never_start_is_known() -> None:
    assert "fewer --nodes" in states.permanent_problem(make_job("PENDING", "PartitionNodeLimit"))
    assert "--slurm account" in states.permanent_problem(make_job("PENDING", "InvalidAccount"))
    assert not states.permanent_problem(make_job("PENDING", "Priority"))
    assert not states.permanent_problem(make_job("RUNNING", "PartitionNodeLimit"))


@pytest.mark.parametrize(
    "reason",
    [
        "uid 1500 not in group permitted to use this partition (grace). groups allowed: root",
        "Job's account not permitted to use this partition (grace allows physics not chemistry)",
    ],
    ids=["group", "account"],
)
def test_job_in_a_closed_partition_never_starts_on_newer_slurm(reason: str) -> None:
    assert "is not open to you; use another --slurm partition=" in states.permanent_problem(make_job("PENDING", reason))
    assert not states.permanent_problem(make_job("RUNNING", reason))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("CANCELLED", "the job was cancelled"),
        ("TIMEOUT", "reached its time limit"),
        ("OUT_OF_MEMORY", "ran out of memory"),
        ("NODE_FAIL", "a node of the job failed"),
        ("PREEMPTED", "was preempted"),
        ("ODD", "ended as ODD"),
    ],
)
def test_end_of_a_job_is_described(state: str, reason: str) -> None:
    result = make_job(state)
    assert result.ended
    assert reason in states.describe_end(result)


def test_forgotten_job_has_ended() -> None:
    assert states.parse("12", "slurm_load_jobs error: Invalid job id specified\n") is None
    result = states.forgotten("12")
    assert result.ended
    assert "does not know job 12 any more" in states.describe_end(result)
