"""Check pods that are lost or deleted while the API still reports them as Running.

The conditions have the shapes that Kubernetes gives them: its node controller sets `Ready` to
False without a reason and leaves `ContainersReady` alone, and whoever evicts a pod adds
`DisruptionTarget`.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from orch_node.protocol.events import Exited, NodeNews, Preempted
from orch_node.protocol.outcome import FAILED

from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.follow import Follower
from orchestrator.targets.kubernetes.outcome import outcome
from orchestrator.targets.kubernetes.status import JobState, PodState, pod_state

STAMP = "2026-01-01T00:00:00Z"


def make_condition(kind: str, status: str, **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": STAMP} | more


def make_pod(*conditions: dict[str, Any], deleted: bool = False, **status: Any) -> dict[str, Any]:
    """Return a pod whose container runs, according to the API."""
    metadata = {"name": "orch-x-worker-1", "uid": "1"}
    if deleted:
        metadata |= {"deletionTimestamp": STAMP}
    running = [{"name": "pytorch", "ready": True, "state": {"running": {"startedAt": STAMP}}}]
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node-b", "containers": [{"name": "pytorch"}]},
        "status": {"phase": "Running", "conditions": list(conditions), "containerStatuses": running} | status,
    }


SCHEDULED = make_condition("PodScheduled", "True")
CONTAINERS_READY = make_condition("ContainersReady", "True")
NOT_READY = make_condition("Ready", "False")
BY_TAINT = make_condition(
    "DisruptionTarget",
    "True",
    reason="DeletionByTaintManager",
    message="Taint manager: deleting due to NoExecute taint",
)
BY_EVICTION = make_condition(
    "DisruptionTarget", "True", reason="EvictionByEvictionAPI", message="Eviction API: evicting"
)
NO_ANSWER = "its node node-b does not respond"


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(make_pod(SCHEDULED, CONTAINERS_READY, NOT_READY), NO_ANSWER, id="node-not-ready"),
        pytest.param(
            make_pod(NOT_READY, CONTAINERS_READY, BY_TAINT, deleted=True),
            f"{NO_ANSWER}; the cluster deletes the pod: {BY_TAINT['message']}",
            id="deleted-from-a-lost-node",
        ),
        pytest.param(
            make_pod(make_condition("Ready", "True"), CONTAINERS_READY, BY_EVICTION, deleted=True),
            "the cluster deletes the pod: Eviction API: evicting",
            id="evicted",
        ),
        pytest.param(
            make_pod(make_condition("Ready", "True"), CONTAINERS_READY, deleted=True),
            "its pod is being deleted",
            id="deleted-by-somebody",
        ),
        pytest.param(
            make_pod(NOT_READY, reason="NodeLost", message="Node node-b is unresponsive"),
            NO_ANSWER,
            id="node-lost-of-older-kubernetes",
        ),
        pytest.param(make_pod(phase="Unknown"), NO_ANSWER, id="phase-unknown"),
    ],
)
def test_a_running_pod_that_is_about_to_be_lost_is_reported(pod: dict[str, Any], words: str) -> None:
    result = pod_state(pod)
    assert (result.reason, result.lost) == (words, True)


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param([make_condition("Ready", "True"), CONTAINERS_READY], id="ready"),
        pytest.param(
            [
                make_condition("Ready", "False", reason="ContainersNotReady"),
                make_condition("ContainersReady", "False", reason="ContainersNotReady"),
            ],
            id="readiness-probe-not-answered-yet",
        ),
    ],
)
def test_a_pod_that_runs_is_not_lost(conditions: list[dict[str, Any]]) -> None:
    result = pod_state(make_pod(*conditions))
    assert (result.state, result.reason, result.lost) == ("running", "", False)


def test_the_log_of_a_pod_that_is_being_deleted_is_still_read() -> None:
    assert pod_state(make_pod(BY_EVICTION, deleted=True)).state == "running"


def test_the_deletion_of_a_lost_pod_is_reported_once() -> None:
    follower = Follower(cast(KubernetesClient, None), "")
    follower.readers["1"] = cast(Any, _ReadAlready())
    pod = make_pod(CONTAINERS_READY, NOT_READY)
    for change in ("ADDED", "MODIFIED", "DELETED"):
        follower.handle_change(change, pod)
    (event,) = list(follower.items.queue)
    assert isinstance(event, NodeNews)
    assert event.text == f"worker-1: {NO_ANSWER}"


class _ReadAlready:
    def is_alive(self) -> bool:
        return True


# The outcome of a run that lost its pods or its job.

LOST = PodState(pod="p", node="worker-1", state="waiting", reason=NO_ANSWER, lost=True)
DELETED = PodState(pod="q", node="worker-0", state="failed", reason="its pod was deleted")
MISSING_JOB = JobState(state="failed", reason="the job is gone", missing=True)
FAILED_JOB = JobState(state="failed", reason="backoff limit")


def end_of(*pods: PodState, job: JobState, events: tuple[Any, ...] = ()) -> Any:
    return outcome(events, pods, job, began=0.0, now=9.0)


def test_a_run_that_lost_a_node_names_it() -> None:
    assert end_of(LOST, DELETED, job=FAILED_JOB).problem == f"worker-1: {NO_ANSWER}"


def test_a_deleted_pod_of_an_existing_job_is_the_reason() -> None:
    assert end_of(DELETED, job=FAILED_JOB).problem == "worker-0: its pod was deleted"


def test_a_deleted_job_is_the_reason_and_not_its_pods() -> None:
    assert end_of(DELETED, job=MISSING_JOB).problem == "the job is gone"


@pytest.mark.parametrize("code", [{"signal": "SIGTERM"}, {"code": 143}])
def test_ranks_that_ended_with_a_deleted_job_have_not_failed(code: dict[str, Any]) -> None:
    result = end_of(DELETED, job=MISSING_JOB, events=(Exited(rank=0, time=1.0, **code),))
    assert (result.problem, result.first_failure) == ("the job is gone", None)


def test_a_rank_that_failed_before_its_job_was_deleted_is_named() -> None:
    result = end_of(DELETED, job=MISSING_JOB, events=(Exited(rank=0, time=1.0, code=3),))
    assert result.first_failure.code == 3


def test_the_checkpoint_of_a_deleted_job_is_named_but_the_run_does_not_resume() -> None:
    events = (Preempted(rank=0, time=1.0, step=7), Exited(rank=0, time=2.0, code=75))
    result = end_of(DELETED, job=MISSING_JOB, events=events)
    assert result.state == FAILED
    assert result.problem == "the job is gone; checkpoint at step 7"
