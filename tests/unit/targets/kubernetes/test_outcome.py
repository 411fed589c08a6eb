"""Check which rank, pod or job is named as the cause of a failure."""

from __future__ import annotations

from typing import Any

import pytest
from orch_node.protocol.events import Exited, Preempted
from orch_node.protocol.events import read as read_event
from orch_node.protocol.outcome import FAILED, Failure, Outcome

from orchestrator.targets.kubernetes.outcome import outcome
from orchestrator.targets.kubernetes.status import JobState, PodState


def make_event(event: str, rank: int, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "rank": rank, "time": time, **fields}


def outcome_of(events: list[dict[str, Any]], *pods: PodState, state: str = "failed") -> Outcome:
    parsed_events = map(read_event, events)
    return outcome(parsed_events, pods, JobState(state=state, reason="backoff"), began=0.0, now=9.0)


def failure_of(events: list[dict[str, Any]], *pods: PodState) -> Failure:
    failure = outcome_of(events, *pods).first_failure
    assert failure is not None
    return failure


def make_exit(rank: int, time: float, code: int = 1, **fields: Any) -> dict[str, Any]:
    return make_event("exit", rank, time, node=f"worker-{rank}", code=code, signal=None, stopped=False, **fields)


def test_rank_that_lost_its_peer_is_not_the_culprit() -> None:
    events = [
        make_event("exception", 0, 1.0, text="Connection closed by peer [10.0.0.1]"),
        make_exit(0, 1.1),
        make_event("exception", 1, 1.2, text="ValueError"),
        make_exit(1, 1.3),
    ]
    assert failure_of(events).rank == 1
    assert outcome_of(events).problem is None


def test_rank_that_all_ranks_name_is_the_culprit() -> None:
    """Blame the rank that all ranks name in their error, as the supervisor does for SSH runs."""
    text = "error: rank 1 on worker-1: cannot write checkpoint-4: No space left on device."
    events = [
        make_event("exception", 0, 1.0, text=text),
        make_exit(0, 1.1),
        make_event("exception", 1, 1.2, text=text),
        make_exit(1, 1.3),
    ]
    assert failure_of(events).rank == 1


def test_rank_whose_backend_aborts_after_a_lost_peer_is_not_the_culprit() -> None:
    message = "terminate called: Connection closed by peer [10.0.0.2]"
    aborted = make_exit(0, 1.0, code=0, text=message) | {"signal": "SIGABRT"}
    assert failure_of([aborted, make_exit(1, 1.5, code=9, text="no data")]).text == "no data"


def test_only_the_last_attempt_counts() -> None:
    events = [
        make_event("started", 0, 1.0, node="worker-0"),
        make_exit(0, 2.0),
        make_event("started", 0, 3.0, node="worker-0"),
        make_exit(0, 4.0, code=7),
    ]
    assert (failure_of(events).code, outcome_of(events).attempts) == (7, 2)


def test_pod_killed_for_memory_names_its_rank() -> None:
    events = [make_event("started", rank, 1.0, node=f"worker-{rank}") for rank in (0, 1)]
    killed = PodState(pod="p", node="worker-1", state="failed", reason="killed", oom=True, code=137)
    for exit_events in ([], [make_exit(1, 2.0, code=0)]):
        failure = failure_of([*events, *exit_events], killed)
        assert (failure.rank, failure.signal, failure.oom) == (1, "SIGKILL", "killed")


def test_pod_killed_for_memory_is_reported_once() -> None:
    events = [make_event("started", rank, 1.0, node=f"worker-{rank}") for rank in (0, 1)]
    killed = PodState(pod="p", node="worker-1", state="failed", reason="killed for memory", oom=True, code=137)
    result = outcome_of(events, killed)
    assert (result.first_failure is not None, result.problem) == (True, None)
    evicted = PodState(pod="q", node="worker-0", state="failed", reason="evicted: disk pressure")
    assert outcome_of(events, killed, evicted).problem == "worker-0: evicted: disk pressure"


def test_problem_is_reported_if_no_rank_failed() -> None:
    assert outcome_of([]).problem == "backoff"
    refused = make_event("refused", -1, 1.0, text="worker-0: no BF16")
    assert outcome_of([refused]).problem == "worker-0: no BF16"
    evicted = PodState(pod="p", node="worker-1", state="failed", reason="evicted: memory")
    assert outcome_of([], evicted).problem == "worker-1: evicted: memory"
    assert outcome_of([], state="done").problem is None


NO_RESPONSE = "its node node-b does not respond"
LOST = PodState(pod="p", node="worker-1", state="waiting", reason=NO_RESPONSE, lost=True)
DELETED = PodState(pod="q", node="worker-0", state="failed", reason="its pod was deleted")
MISSING_JOB = JobState(state="failed", reason="the job is gone", missing=True)
FAILED_JOB = JobState(state="failed", reason="backoff limit")


def end_of(*pods: PodState, job: JobState, events: tuple[Any, ...] = ()) -> Any:
    return outcome(events, pods, job, began=0.0, now=9.0)


def test_run_that_lost_a_node_names_it() -> None:
    assert end_of(LOST, DELETED, job=FAILED_JOB).problem == f"worker-1: {NO_RESPONSE}"


def test_deleted_pod_of_an_existing_job_is_the_reason() -> None:
    assert end_of(DELETED, job=FAILED_JOB).problem == "worker-0: its pod was deleted"


def test_deleted_job_is_the_reason_and_not_its_pods() -> None:
    assert end_of(DELETED, job=MISSING_JOB).problem == "the job is gone"


@pytest.mark.parametrize("code", [{"signal": "SIGTERM"}, {"code": 143}])
def test_ranks_that_ended_with_a_deleted_job_have_not_failed(code: dict[str, Any]) -> None:
    result = end_of(DELETED, job=MISSING_JOB, events=(Exited(rank=0, time=1.0, **code),))
    assert (result.problem, result.first_failure) == ("the job is gone", None)


def test_rank_that_failed_before_its_job_was_deleted_is_named() -> None:
    result = end_of(DELETED, job=MISSING_JOB, events=(Exited(rank=0, time=1.0, code=3),))
    assert result.first_failure.code == 3


def test_checkpoint_of_a_deleted_job_is_named_but_the_run_does_not_resume() -> None:
    events = (Preempted(rank=0, time=1.0, step=7), Exited(rank=0, time=2.0, code=75))
    result = end_of(DELETED, job=MISSING_JOB, events=events)
    assert result.state == FAILED
    assert result.problem == "the job is gone; checkpoint at step 7"
