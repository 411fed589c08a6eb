"""Events and states of pods -> how a run ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orch_node.protocol import failures
from orch_node.protocol.events import Event, Exited, OutcomeReported, Preempted, Refused, Stalled, Started
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Failure, Outcome

from orchestrator.targets.kubernetes.status import BEING_DELETED, DELETED, JobState, PodState

SIGTERM_CODE = 128 + 15  # of a program that a shell has started
CONSEQUENCES = ("exited with", DELETED, BEING_DELETED)  # of pods: something else was the cause


def outcome(events: Iterable[Event], pods: Iterable[PodState], job: JobState, *, began: float, now: float) -> Outcome:
    """How a run ended: the supervisor's own word where there is one (MPI)."""
    told, known = list(events), list(pods)
    own = [one.outcome for one in told if isinstance(one, OutcomeReported) and one.outcome]
    if own and not (job.gone and own[-1].state == FAILED and not own[-1].first_failure):
        return own[-1]
    state = DONE if job.state == "done" else FAILED
    failure = first_failure(told, known) if state == FAILED else None
    if failure and job.gone and (failure.signal == "SIGTERM" or failure.code == SIGTERM_CODE):
        failure = None  # the deletion of the job has ended it
    room = made_room(told) if state == FAILED and failure is None else None
    preempted = bool(room) and not job.gone
    reason = None if state == DONE or preempted else problem(told, known, job, failure)
    return Outcome(
        state=PREEMPTED if preempted else state,
        first_failure=failure,
        problem="; ".join(filter(None, [reason, room])) or None,
        launcher_code=None,
        attempts=1 + restarts(told),
        started=began,
        ended=now,
    )


def made_room(events: Sequence[Event]) -> str | None:
    """Of a last attempt whose ranks have ended to make room: from where it goes on."""
    attempt = events[last_start(events) :]
    if not any(isinstance(one, Exited) and one.preempted for one in attempt):
        return None
    steps = [one.step for one in attempt if isinstance(one, Preempted)]
    return f"checkpoint at step {max(steps)}" if steps else "the ranks ended for it"


def restarts(events: Sequence[Event]) -> int:
    """How often rank 0 was started again."""
    return max(0, sum(1 for one in events if isinstance(one, Started) and one.rank == 0) - 1)


def first_failure(events: Sequence[Event], pods: Sequence[PodState]) -> Failure | None:
    """The rank that failed first; those that only lost a peer come after those that did not. The
    pods' logs come as they are read, so the events' own times give their order."""
    attempt = events[last_start(events) :]
    killed = {one.rank: one for one in killed_for_memory(attempt, pods)}
    own = (one for one in attempt if not (isinstance(one, Exited) and one.rank in killed))
    told = sorted([*own, *killed.values()], key=lambda event: event.time)
    return failures.first_failure(failures.rank_ends(told), nodes_of(attempt))


def nodes_of(events: Iterable[Event]) -> dict[int, str]:
    """Rank -> its pod, as it was started there."""
    return {one.rank: one.node for one in events if isinstance(one, Started) and one.node}


def killed_for_memory(events: Iterable[Event], pods: Iterable[PodState]) -> Iterator[Event]:
    """The ends of ranks whose pod was killed: nobody was left to report them."""
    killed = {pod.node: pod for pod in pods if pod.oom}
    for event in events:
        if isinstance(event, Started) and event.node in killed:
            yield Exited(
                rank=event.rank,
                time=event.time,
                node=event.node,
                code=137,
                signal="SIGKILL",
                oom=killed[event.node].words,
            )


def last_start(events: Sequence[Event]) -> int:
    """Where the last attempt begins: at the last time that a rank was started again."""
    seen: set[int] = set()
    begin = 0
    for at, event in enumerate(events):
        if not isinstance(event, Started):
            continue
        if event.rank in seen:
            begin, seen = at, set()
        seen.add(event.rank)
    return begin


def problem(events: Sequence[Event], pods: Sequence[PodState], job: JobState, failure: Failure | None) -> str | None:
    """What happened, where no rank says it: a pod refused, was evicted, never started."""
    if refused := [one.text for one in events if isinstance(one, Refused)]:
        return "; ".join(dict.fromkeys(refused))
    if stalled := [one.text for one in events if isinstance(one, Stalled)]:
        return "; ".join(stalled)
    ended_pods = [pod for pod in pods if pod.state == "failed" or pod.lost]
    oom = failure.oom if failure else None  # the failure says so already
    causes = [pod for pod in ended_pods if not pod.words.startswith(CONSEQUENCES) and pod.words != oom]
    if failure and not causes:
        return None
    if job.gone and not causes:
        return job.words
    words = [f"{pod.node}: {pod.words}" for pod in causes or ended_pods]
    return "; ".join(words) or job.words or "the job failed"
