"""The states of a run's pods and its job, as read from the API's objects, and the run's outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from orch_node.protocol import failures
from orch_node.protocol.events import Event, Exited, Preempted, Refused, Stalled, Started
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Failure, Outcome
from orch_node.protocol.pod import node_name

from orchestrator.runs.events import last_attempt
from orchestrator.targets.kubernetes import names

Json = Mapping[str, Any]

PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
PULL |= {"RegistryUnavailable", "SignatureValidationFailed"}
DELETED = "its pod was deleted"
BEING_DELETED = "its pod is being deleted"
STARTING = ("ContainerCreating", "PodInitializing")
JOB_DONE = ("Succeeded", "Complete")
# Reasons of events that explain why a pod that has a node does not start.
START_FAILURES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The state of a pod, and the reason for it."""

    pod: str
    node: str  # of the run's layout
    container: str = ""  # in which orch's program runs
    state: str  # waiting, running, done or failed
    reason: str = ""  # one line
    oom: bool = False  # killed because it exceeded its memory limit
    started: bool = False  # its container has a log
    lost: bool = False  # has not ended, but its node does not respond or it is being deleted


def pod_state(pod: Json, events: Iterable[Json] = ()) -> PodState:
    """Return the state of a pod.

    Args:
        pod: the object from the API.
        events: the events about this pod, oldest first.
    """
    name, status = pod["metadata"]["name"], pod.get("status", {})
    phase = status.get("phase", "Pending")
    container = own_container(status.get("containerStatuses"))
    state = container.get("state") or {}
    ended = state.get("terminated")
    specified = own_container(pod.get("spec", {}).get("containers"))
    make = partial(PodState, pod=name, node=node_name(name), container=str(specified.get("name", "")))
    if phase == "Failed" or (ended and ended.get("exitCode")):
        ended = ended or last_end(container)
        oom = bool(ended and ended.get("reason") == "OOMKilled" and status.get("reason") != "Evicted")
        return make(state="failed", reason=failure_reason(pod, ended, oom=oom), oom=oom, started=bool(ended))
    if phase == "Succeeded" or ended:
        return make(state="done", started=True, reason=describe_remaining(status))
    running = state.get("running") is not None
    # The node controller sets `Ready` to False and leaves `ContainersReady` as the kubelet has written it; the kubelet
    # itself never makes the two differ, because orch's pods have no readiness gates.
    unreachable = bool(condition(status, "Ready", value="False") and condition(status, "ContainersReady"))
    if loss := describe_loss(pod, unreachable=unreachable):
        readable = running and not unreachable  # its log comes from the kubelet
        return make(state="running" if readable else "waiting", reason=loss, started=running or unreachable, lost=True)
    before = last_end(container)
    oom = bool(before and before.get("reason") == "OOMKilled")
    if before and (oom or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"):
        reason = f"its container is restarted: {failure_reason(pod, before, oom=oom)}"
        return make(state="running" if running else "waiting", reason=reason, oom=oom and not running, started=True)
    if waiting := reason_to_wait(pod, state, events):
        return make(state="waiting", reason=waiting, started=bool(last_end(container)))
    return make(state="running" if running else "waiting", started=running)


def own_container(containers: Sequence[Json] | None) -> Json:
    """Return orch's container, or its status, among those of a pod, which Kubernetes sorts by name."""
    entries = containers or [{}]
    return next((entry for entry in entries if entry.get("name") in names.CONTAINERS), entries[0])


def all_containers(status: Json) -> list[Json]:
    """Return the statuses of a pod's containers, first of those that run before the others."""
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def describe_remaining(status: Json) -> str:
    """Return which containers keep a pod alive whose ranks have ended, or an empty string."""
    statuses = status.get("containerStatuses") or ()
    running = [entry["name"] for entry in statuses if (entry.get("state") or {}).get("running") is not None]
    if not running or status.get("phase") != "Running":
        return ""
    return f"its ranks have ended, but containers that orch has not added keep it alive: {', '.join(running)}"


def describe_loss(pod: Json, *, unreachable: bool) -> str:
    """Return why a pod that has not ended is about to be lost, or an empty string."""
    reasons = []
    if unreachable:
        node = pod.get("spec", {}).get("nodeName")
        reasons.append(f"its node {node} does not respond" if node else "its node does not respond")
    if disrupted := condition(pod.get("status", {}), "DisruptionTarget"):
        reasons.append(f"the cluster deletes the pod: {explained(disrupted)}")
    elif pod["metadata"].get("deletionTimestamp"):
        reasons.append(BEING_DELETED)
    return "; ".join(reasons)


def last_end(container: Json) -> Json | None:
    ended: Json | None = (container.get("lastState") or {}).get("terminated")
    return ended


def failure_reason(pod: Json, ended: Json | None, *, oom: bool) -> str:
    """Return the most specific reason that the API has for the failure of a pod."""
    status = pod.get("status", {})
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason == "Evicted":
        return f"evicted: {message}"
    if oom:
        resources = own_container(pod.get("spec", {}).get("containers")).get("resources", {})
        limit = resources.get("limits", {}).get("memory", "not set")
        return f"killed because of its memory use (OOMKilled): the pod's limit is {limit}"
    if disrupted := condition(status, "DisruptionTarget"):
        return f"ended by the cluster: {explained(disrupted)}"
    if reason:
        return f"{reason}: {message}".rstrip(": ")
    if pod["metadata"].get("deletionTimestamp"):
        return DELETED
    if ended and ended.get("exitCode"):
        return "; ".join(filter(None, [describe_exit(ended), describe_remaining(status)]))
    # Admission webhooks and patches add containers, also those that run before orch's.
    for container in all_containers(status):
        end = (container.get("state") or {}).get("terminated") or {}
        if end.get("exitCode"):
            return f"its container {container['name']} {describe_exit(end)}"
    return "failed without a reason"


def describe_exit(ended: Json) -> str:
    """Return the exit code, and the container runtime's message, for example about a missing program."""
    reason, message = ended.get("reason", ""), str(ended.get("message") or "").strip()
    text = f"exited with code {ended.get('exitCode')}"
    if reason not in ("", "Error", "Completed"):
        text = f"{text} ({reason})"
    return f"{text}: {' '.join(message.split())}" if message else text


def reason_to_wait(pod: Json, state: Json, events: Iterable[Json]) -> str:
    """Return why a pod does not run yet, or an empty string if it runs or is starting normally."""
    status = pod.get("status", {})
    if unscheduled := condition(status, "PodScheduled", value="False"):
        return f"waits for a node: {explained(unscheduled)}"
    if state.get("running") is not None:
        return ""
    for container in all_containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULL:
            image = container.get("image") or own_container(pod.get("spec", {}).get("containers")).get("image", "")
            if reason == "ImagePullBackOff":  # Back-off pulling image "NAME", in newer versions then: REASON: CAUSE
                message = message.partition('": ')[2].partition(": ")[2]
            return f"its image {image} cannot be pulled" + (f": {message}" if message else "")
        if reason not in ("", *STARTING):
            return f"{reason}: {message}".rstrip(": ")
    # Events are kept for an hour, even after their cause is gone: a newer one is about another step of the start.
    *_, newest = ({}, *events)
    if newest.get("reason") in START_FAILURES and not condition(status, "PodReadyToStartContainers"):
        return f"{newest['reason']}: {newest.get('message', '')}"
    return ""


def condition(status: Json, kind: str, value: str = "True") -> Json | None:
    """Return the condition of this type if it has this value."""
    entries = status.get("conditions") or ()
    return next((entry for entry in entries if (entry.get("type"), entry.get("status")) == (kind, value)), None)


def explained(entry: Json) -> str:
    """Return why a condition has its value."""
    return str(entry.get("message") or entry.get("reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a run's job."""

    state: str  # running, suspended, done or failed
    reason: str = ""  # of a failure, as the operator reports it
    ended: float | None = None  # by the cluster's clock, in seconds since 1970
    missing: bool = False  # the cluster has no such job


def job_state(job: Json, pods: Iterable[PodState] = ()) -> JobState:
    """Return the state of a job by its conditions, and by its pods whether more of a failed job can be followed."""
    status = job.get("status", {})
    if any(condition(status, kind) for kind in JOB_DONE):
        return JobState(state="done", ended=ended_at(job))
    failed = condition(status, "Failed")
    # Kubernetes adds `Failed` to `FailureTarget` when the last pod has ended, which a pod on a lost node never does.
    if all(pod.state in ("done", "failed") or (pod.lost and pod.state == "waiting") for pod in pods):
        failed = failed or condition(status, "FailureTarget")
    if failed:
        return JobState(state="failed", reason=explained(failed), ended=ended_at(job))
    if condition(status, "Suspended"):
        return JobState(state="suspended", reason="suspended by Kueue until there is quota, or by a user")
    return JobState(state="running")


def ended_at(job: Json) -> float | None:
    """Return when a job was done or failed, in seconds since 1970, or None if that is unknown."""
    conditions = (condition(job.get("status", {}), kind) for kind in (*JOB_DONE, "Failed"))
    return seconds(next(filter(None, conditions), {}).get("lastTransitionTime"))


def created_at(job: Json) -> float | None:
    """Return when the cluster created an object, in seconds since 1970."""
    return seconds(job["metadata"].get("creationTimestamp"))


def seconds(stamp: str | None) -> float | None:
    """Convert 2026-01-01T12:00:00Z, also with nanoseconds or the offset of a time zone, to seconds since 1970."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT[\d:]{8})(?:(\.\d{1,6})\d*)?(Z|[+-]\d\d:\d\d)", stamp or "")
    date, fraction, zone = match.groups() if match else ("", "", "")
    try:  # Python 3.10 reads neither Z nor fractions of all lengths.
        return datetime.fromisoformat(date + zone.replace("Z", "+00:00")).timestamp() + float(fraction or 0)
    except ValueError:
        return None


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
    attempt = last_attempt(all_events)
    state = DONE if job.state == "done" else FAILED
    failure = first_failure(attempt, all_pods) if state == FAILED else None
    if failure and job.missing and (failure.signal == "SIGTERM" or failure.code == SIGTERM_CODE):
        failure = None  # caused by the deletion of the job
    preemption = describe_preemption(attempt) if state == FAILED and failure is None else None
    preempted = bool(preemption) and not job.missing
    reason = None if state == DONE or preempted else problem(attempt, all_pods, job, failure)
    return Outcome(
        state=PREEMPTED if preempted else state,
        first_failure=failure,
        problem="; ".join(filter(None, [reason, preemption])) or None,
        attempts=max(1, sum(isinstance(event, Started) and event.rank == 0 for event in all_events)),
        started=began,
        ended=now,
    )


def describe_preemption(events: Sequence[Event]) -> str | None:
    """Return from where a run resumes whose last pods were preempted, or None."""
    events = events[last_start(events) :]
    if not any(isinstance(event, Exited) and event.preempted for event in events):
        return None
    steps = [event.step for event in events if isinstance(event, Preempted)]
    return f"checkpoint at step {max(steps)}" if steps else "the ranks ended for it"


def first_failure(events: Sequence[Event], pods: Sequence[PodState]) -> Failure | None:
    """Return the rank that failed first, and prefer ranks that did not just lose a peer.

    The pods' logs are read in any order, so the events are ordered by their own times.
    """
    events = events[last_start(events) :]
    reasons = {pod.node: pod.reason for pod in pods if pod.oom}  # no process has reported the ends of their ranks
    killed = {
        event.rank: Exited(
            rank=event.rank, time=event.time, node=event.node, code=137, signal="SIGKILL", oom=reasons[event.node]
        )
        for event in events
        if isinstance(event, Started) and event.node in reasons
    }
    other_events = (event for event in events if not (isinstance(event, Exited) and event.rank in killed))
    ordered = sorted([*other_events, *killed.values()], key=lambda event: event.time)
    return failures.first_failure(failures.rank_ends(ordered), nodes_of(events))


def nodes_of(events: Iterable[Event]) -> dict[int, str]:
    """Return the pod in which each rank was started."""
    return {event.rank: event.node for event in events if isinstance(event, Started) and event.node}


def last_start(events: Sequence[Event]) -> int:
    """Return the index of the first event after the last restart of pods within an attempt."""
    ranks: set[int] = set()
    begin = 0
    for index, event in enumerate(events):
        if isinstance(event, Started):
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
