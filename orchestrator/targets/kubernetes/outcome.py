"""The outcome of a run, from its events and the states of its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orch_node.protocol import failures
from orch_node.protocol.events import Event, Exited, Preempted, Refused, Stalled, Started
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Failure, Outcome

from orchestrator.targets.kubernetes.status import BEING_DELETED, DELETED, JobState, PodState

SIGTERM_CODE = 128 + 15  # exit code of a shell whose program SIGTERM has ended
CONSEQUENCES = ("exited with", DELETED, BEING_DELETED)  # reasons of pods that do not explain a failure


def outcome(events: Iterable[Event], pods: Iterable[PodState], job: JobState, *, began: float, now: float) -> Outcome:
    """Return how a run ended.

    Args:
        events: all events of the run.
        pods: the newest states of its pods.
        job: the last state of its job.
        began: seconds since 1970.
        now: seconds since 1970.
    """
    all_events, all_pods = list(events), list(pods)
    state = DONE if job.state == "done" else FAILED
    failure = first_failure(all_events, all_pods) if state == FAILED else None
    if failure and job.missing and (failure.signal == "SIGTERM" or failure.code == SIGTERM_CODE):
        failure = None  # caused by the deletion of the job
    preemption = describe_preemption(all_events) if state == FAILED and failure is None else None
    preempted = bool(preemption) and not job.missing
    reason = None if state == DONE or preempted else problem(all_events, all_pods, job, failure)
    return Outcome(
        state=PREEMPTED if preempted else state,
        first_failure=failure,
        problem="; ".join(filter(None, [reason, preemption])) or None,
        launcher_code=None,
        attempts=1 + restarts(all_events),
        started=began,
        ended=now,
    )


def describe_preemption(events: Sequence[Event]) -> str | None:
    """Return from where a run resumes whose last attempt was preempted, or None."""
    attempt = events[last_start(events) :]
    if not any(isinstance(event, Exited) and event.preempted for event in attempt):
        return None
    steps = [event.step for event in attempt if isinstance(event, Preempted)]
    return f"checkpoint at step {max(steps)}" if steps else "the ranks ended for it"


def restarts(events: Sequence[Event]) -> int:
    """Return how often rank 0 was restarted."""
    return max(0, sum(1 for event in events if isinstance(event, Started) and event.rank == 0) - 1)


def first_failure(events: Sequence[Event], pods: Sequence[PodState]) -> Failure | None:
    """Return the rank that failed first, and prefer ranks that did not just lose a peer.

    The pods' logs are read in any order, so the events are ordered by their own times.
    """
    attempt = events[last_start(events) :]
    killed = {event.rank: event for event in out_of_memory_ends(attempt, pods)}
    other_events = (event for event in attempt if not (isinstance(event, Exited) and event.rank in killed))
    ordered = sorted([*other_events, *killed.values()], key=lambda event: event.time)
    return failures.first_failure(failures.rank_ends(ordered), nodes_of(attempt))


def nodes_of(events: Iterable[Event]) -> dict[int, str]:
    """Return the pod in which each rank was started."""
    return {event.rank: event.node for event in events if isinstance(event, Started) and event.node}


def out_of_memory_ends(events: Iterable[Event], pods: Iterable[PodState]) -> Iterator[Event]:
    """Yield the ends of ranks whose pod was killed, which no process has reported."""
    killed = {pod.node: pod for pod in pods if pod.oom}
    for event in events:
        if isinstance(event, Started) and event.node in killed:
            yield Exited(
                rank=event.rank,
                time=event.time,
                node=event.node,
                code=137,
                signal="SIGKILL",
                oom=killed[event.node].reason,
            )


def last_start(events: Sequence[Event]) -> int:
    """Return the index of the first event of the last attempt, which begins with a restart."""
    ranks: set[int] = set()
    begin = 0
    for index, event in enumerate(events):
        if not isinstance(event, Started):
            continue
        if event.rank in ranks:
            begin, ranks = index, set()
        ranks.add(event.rank)
    return begin


def problem(events: Sequence[Event], pods: Sequence[PodState], job: JobState, failure: Failure | None) -> str | None:
    """Return a problem that no rank reports: a pod refused to start, was evicted or never started."""
    if refused := [event.text for event in events if isinstance(event, Refused)]:
        return "; ".join(dict.fromkeys(refused))
    if stalled := [event.text for event in events if isinstance(event, Stalled)]:
        return "; ".join(stalled)
    ended_pods = [pod for pod in pods if pod.state == "failed" or pod.lost]
    oom = failure.oom if failure else None  # already in the failure
    causes = [pod for pod in ended_pods if not pod.reason.startswith(CONSEQUENCES) and pod.reason != oom]
    if failure and not causes:
        return None
    if job.missing and not causes:
        return job.reason
    reasons = [f"{pod.node}: {pod.reason}" for pod in causes or ended_pods]
    return "; ".join(reasons) or job.reason or "the job failed"
