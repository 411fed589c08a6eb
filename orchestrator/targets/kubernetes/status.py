"""What the API says of a run's pods and job, in the users' words. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
DELETED = "its pod was deleted"
BEING_DELETED = "its pod is being deleted"
CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
DONE = ("Succeeded", "Complete")
# Reasons of events that explain why a pod does not start.
START_FAILURES = ("FailedMount", "FailedAttachVolume", "FailedScheduling", "FailedCreatePodSandBox")
# Reasons of events that the kubelet reports only after the pod's volumes and its sandbox are ready.
CONTAINER_EVENTS = ("Pulling", "Pulled", "Created", "Started")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """`state`: waiting, running, done or failed; `words`: why, in one line. `oom`: killed for
    memory. `started`: its container has something to say. `lost`: its node does not respond, or
    the pod is being deleted, although it has not ended."""

    pod: str
    node: str
    state: str
    words: str = ""
    oom: bool = False
    code: int | None = None
    started: bool = False
    lost: bool = False


def node_of(pod: str) -> str:
    """orch-x-worker-3, orch-x-launcher-abcde, orch-x-node-0-3-abcde as the plan names them."""
    if match := re.search(r"-(worker-\d+|launcher)(?:-(?:0-0-)?[a-z0-9]+)?$", pod):
        return match.group(1)
    if match := re.search(r"-(node|launcher)-0-(\d+)(?:-[a-z0-9]{5})?$", pod):
        return f"node-{match.group(2)}" if match.group(1) == "node" else "launcher"
    if match := re.fullmatch(r"orch-.+-(\d+)-[a-z0-9]{5}", pod):
        return f"worker-{match.group(1)}"  # of an Indexed Job
    return pod


def pod_state(pod: Json, events: Iterable[Json] = ()) -> PodState:
    """`events`: those of this pod, oldest first."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    phase = status.get("phase", "Pending")
    containers = status.get("containerStatuses") or [{}]
    state = containers[0].get("state") or {}
    ended = state.get("terminated")
    make = Maker(name, node_of(name))
    if phase == "Failed" or (ended and ended.get("exitCode")):
        return failed(make, pod, ended or last_end(containers[0]))
    if phase == "Succeeded" or ended:
        return make(state="done", code=0, started=True)
    running = state.get("running") is not None
    unreachable = is_node_lost(status)
    if loss := describe_loss(pod, unreachable=unreachable):
        readable = running and not unreachable  # its log comes from the kubelet
        return make(state="running" if readable else "waiting", words=loss, started=running or unreachable, lost=True)
    if waiting := waiting_words(pod, state, tuple(events)):
        return make(state="waiting", words=waiting, started=bool(last_end(containers[0])))
    return make(state="running" if running else "waiting", started=running)


def is_node_lost(status: Json) -> bool:
    """Return whether the control plane has lost contact with the pod's node.

    The node controller sets `Ready` to False and leaves `ContainersReady` as the kubelet has
    written it; the kubelet itself never makes the two differ, because orch's pods have no readiness
    gates. Kubernetes before 1.13 wrote the reason NodeLost.
    """
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return True
    not_ready = condition(status, "Ready", wanted="False")
    return bool(not_ready and condition(status, "ContainersReady"))


def describe_loss(pod: Json, *, unreachable: bool) -> str:
    """Return why a pod that has not ended is about to be lost, or an empty string."""
    reasons = []
    if unreachable:
        node = pod.get("spec", {}).get("nodeName")
        reasons.append(f"its node {node} does not respond" if node else "its node does not respond")
    disrupted = condition(pod.get("status", {}), "DisruptionTarget")
    if disrupted:
        message = disrupted.get("message") or disrupted.get("reason")
        reasons.append(f"the cluster deletes the pod: {message}")
    elif pod["metadata"].get("deletionTimestamp"):
        reasons.append(BEING_DELETED)
    return "; ".join(reasons)


class Maker:
    """PodStates of one pod."""

    def __init__(self, pod: str, node: str) -> None:
        self.pod = pod
        self.node = node

    def __call__(self, **fields: Any) -> PodState:
        return PodState(pod=self.pod, node=self.node, **fields)


def last_end(container: Json) -> Json | None:
    ended: Json | None = (container.get("lastState") or {}).get("terminated")
    return ended


def failed(make: Maker, pod: Json, ended: Json | None) -> PodState:
    status = pod.get("status", {})
    reason, message = status.get("reason", ""), status.get("message", "")
    code = ended.get("exitCode") if ended else None
    if reason == "Evicted":
        return make(state="failed", words=f"evicted: {message}", code=code, started=bool(ended))
    if ended and ended.get("reason") == "OOMKilled":
        words = f"killed for memory (OOMKilled): the pod's limit is {memory_limit(pod)}"
        return make(state="failed", words=words, oom=True, code=code, started=True)
    if disrupted := condition(status, "DisruptionTarget"):
        words = f"taken away by the cluster: {disrupted.get('message') or disrupted.get('reason')}"
        return make(state="failed", words=words, code=code, started=bool(ended))
    if reason:
        words = f"{reason}: {message}".rstrip(": ")
        return make(state="failed", words=words, code=code, started=bool(ended))
    if pod["metadata"].get("deletionTimestamp"):
        return make(state="failed", words=DELETED, code=code, started=bool(ended))
    words = exit_words(ended) if ended else "failed without a word"
    return make(state="failed", words=words, code=code, started=bool(ended))


def exit_words(ended: Json) -> str:
    """With what the runtime has to say: of a command that is not there, for one."""
    reason, message = ended.get("reason", ""), str(ended.get("message") or "").strip()
    words = f"exited with code {ended.get('exitCode')}"
    if reason not in ("", "Error", "Completed"):
        words = f"{words} ({reason})"
    return f"{words}: {' '.join(message.split())}" if message else words


def memory_limit(pod: Json) -> str:
    containers = pod.get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits", {})
    return str(limits.get("memory", "not set"))


def waiting_words(pod: Json, state: Json, events: tuple[Json, ...]) -> str:
    """Why a pod does not run yet; empty if it does, or is merely being started."""
    scheduled = condition(pod.get("status", {}), "PodScheduled", wanted="False")
    if scheduled:
        return f"waits for a node: {scheduled.get('message') or scheduled.get('reason')}"
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in PULL:
        image = pod.get("spec", {}).get("containers", [{}])[0].get("image", "")
        told = message if reason != "ImagePullBackOff" else ""
        return f"its image {image} cannot be pulled" + (f": {told}" if told else "")
    if reason in CONFIG:
        return f"its container cannot be made: {message or reason}"
    if reason == "CrashLoopBackOff":
        return f"starts again and again: {message or reason}"
    if state.get("running") is not None:
        return ""
    failure = current_failure(pod, events)
    return f"{failure['reason']}: {failure.get('message', '')}" if failure else ""


def current_failure(pod: Json, events: tuple[Json, ...]) -> Json | None:
    """Return the newest event about a failure to start that the pod has not got past.

    Events stay for an hour, also after what they report is solved.
    """
    if condition(pod.get("status", {}), "PodReadyToStartContainers"):
        return None
    has_node = bool(pod.get("spec", {}).get("nodeName"))
    failure: Json | None = None
    for event in events:
        reason = event.get("reason")
        is_attached = reason == "SuccessfulAttachVolume" and failure and failure["reason"] == "FailedAttachVolume"
        if reason in CONTAINER_EVENTS or is_attached:
            failure = None
        elif reason in START_FAILURES and not (has_node and reason == "FailedScheduling"):
            failure = event
    return failure


def condition(status: Json, kind: str, wanted: str = "True") -> Json | None:
    for one in status.get("conditions") or ():
        if one.get("type") == kind and one.get("status") == wanted:
            return dict(one)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """`state`: running, suspended, done or failed; `words`: the operator's, if it failed; `ended`:
    when it was done or failed, by the cluster's clock; `gone`: the cluster has no such job."""

    state: str
    words: str = ""
    ended: float | None = None
    gone: bool = False


def job_state(job: Json) -> JobState:
    status = job.get("status", {})
    if any(condition(status, kind) for kind in DONE):
        return JobState(state="done", ended=ended_at(job))
    if found := condition(status, "Failed"):
        words = str(found.get("message") or found.get("reason"))
        return JobState(state="failed", words=words, ended=ended_at(job))
    if condition(status, "Suspended"):
        return JobState(state="suspended", words="suspended: a queue holds it back, or somebody")
    return JobState(state="running")


def ended_at(job: Json) -> float | None:
    """When it was done or failed, in seconds since 1970; None if it was not, or does not say."""
    status = job.get("status", {})
    found = next((one for kind in (*DONE, "Failed") if (one := condition(status, kind))), None)
    return seconds((found or {}).get("lastTransitionTime"))


def made_at(job: Json) -> float | None:
    """When the cluster made it, in seconds since 1970."""
    return seconds(job["metadata"].get("creationTimestamp"))


def seconds(stamp: str | None) -> float | None:
    """2026-01-01T12:00:00Z, as seconds since 1970."""
    if not stamp:
        return None
    try:
        return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def unseen(job: Json) -> bool:
    """Whether no operator has taken the job up: it has no status at all."""
    return not job.get("status")
