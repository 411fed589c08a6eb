"""Check how the states of pods and jobs are described, also of pods that are about to be lost."""

from __future__ import annotations

from typing import Any

from orch_node.protocol.events import NodeNews
from orch_node.protocol.events import read as read_event
from orch_node.protocol.outcome import FAILED
from orch_node.protocol.pod import node_name

from orchestrator.targets.kubernetes.status import JobState, PodState, job_state, outcome, pod_state
from orchestrator.targets.kubernetes.watch import Follower


def make_pod(**status: Any) -> dict[str, Any]:
    """Return a pod as the Kubernetes API describes it, with this status."""
    container = {"image": "registry.example/x", "resources": {"limits": {"memory": "8Gi"}}}
    return {"metadata": {"name": "orch-x-worker-3"}, "spec": {"containers": [container]}, "status": status}


def container_state(**state: Any) -> list[dict[str, Any]]:
    """Return the `containerStatuses` of a pod whose only container is in this state."""
    return [{"state": state}]


def waiting_for(reason: str, message: str) -> list[dict[str, Any]]:
    """Return the `containerStatuses` of a pod whose container cannot start for this reason."""
    return container_state(waiting={"reason": reason, "message": message})


def test_node_name_is_derived_from_pod_name() -> None:
    for pod_name, node in (
        ("orch-2026-qa-ab12-worker-3", "worker-3"),
        ("orch-2026-qa-ab12-node-0-11-x7k2p", "node-11"),
        ("orch-2026-qa-ab12-node-0-11", "node-11"),
        ("orch-2026-qa-ab12-3", "worker-3"),
        ("orch-2026-qa-ab12-3-45678", "worker-3"),
        ("something", "something"),
    ):
        assert node_name(pod_name) == node


NO_NODE = "pod has unbound immediate PersistentVolumeClaims"
OOM_KILLED = container_state(terminated={"exitCode": 137, "reason": "OOMKilled"})


def test_pod_state_explains_why_a_pod_or_its_container_does_not_run() -> None:
    unschedulable = [{"type": "PodScheduled", "status": "False", "message": NO_NODE}]
    for status, state, reason in (
        ({"phase": "Succeeded"}, "done", ""),
        ({"phase": "Pending", "conditions": unschedulable}, "waiting", f"waits for a node: {NO_NODE}"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, "failed", "evicted: disk pressure"),
        ({"phase": "Failed"}, "failed", "failed without a reason"),  # no-reason-given
    ):
        result = pod_state(make_pod(**status))
        assert (result.state, result.reason) == (state, reason)
    init = {"name": "vault", "image": "vault:1", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}
    result = pod_state(make_pod(containerStatuses=waiting_for("PodInitializing", ""), initContainerStatuses=[init]))
    assert result.reason == "its image vault:1 cannot be pulled: denied"
    crashed = {"name": "vault", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no token"}}}
    for container_statuses in (
        {"initContainerStatuses": [crashed], "containerStatuses": waiting_for("PodInitializing", "")},
        {"containerStatuses": [*container_state(terminated={"exitCode": 0}), crashed]},
    ):
        result = pod_state(make_pod(phase="Failed", **container_statuses))
        assert (result.state, result.reason) == ("failed", "its container vault exited with code 3: no token")
    for phase, statuses, state, reason in (
        ("Running", container_state(running={}), "running", ""),
        ("Running", waiting_for("CrashLoopBackOff", "back-off"), "waiting", "CrashLoopBackOff: back-off"),
        ("Failed", OOM_KILLED, "failed", "killed because of its memory use (OOMKilled): the pod's limit is 8Gi"),
    ):
        result = pod_state(make_pod(phase=phase, containerStatuses=statuses))
        assert (result.state, result.reason) == (state, reason)
    for restarted in (waiting_for("CrashLoopBackOff", "back-off 10s restarting"), container_state(running={})):
        statuses = [{**restarted[0], "lastState": OOM_KILLED[0]["state"]}]
        result = pod_state(make_pod(phase="Running", containerStatuses=statuses))
        assert result.reason.startswith("its container is restarted: killed because of its memory use (OOMKilled)")
        assert result.oom is (result.state == "waiting")


def test_image_that_cannot_be_pulled_is_reported_once() -> None:
    follower = Follower(None, {})
    text, back_off = "worker-3: its image registry.example/x cannot be pulled: denied", 'Back-off pulling image "x"'
    waiting = (
        ("ErrImagePull", "denied"),
        ("ImagePullBackOff", back_off),  # of older versions
        ("ImagePullBackOff", f"{back_off}: SignatureValidationFailed: denied"),
        ("SignatureValidationFailed", "denied"),
    )
    for reason, message in 3 * waiting:
        # The phase is Running because the follower queries the events of pending pods only.
        follower.handle_change("1", make_pod(phase="Running", containerStatuses=waiting_for(reason, message)))
    event = follower.items.get()
    assert isinstance(event, NodeNews)
    assert event.text == text
    assert follower.items.empty()
    assert follower.reasons_to_wait() == text


NO_SHARE = {"reason": "FailedMount", "message": "no such share"}
NO_NETWORK = {"reason": "FailedCreatePodSandBox", "message": "no network"}
NOT_ATTACHED = {"reason": "FailedAttachVolume", "message": "disk is busy"}
SANDBOX_READY = [{"type": "PodReadyToStartContainers", "status": "True"}]


def test_event_about_starting_is_outdated_once_the_pod_is_past_it() -> None:
    creating = waiting_for("ContainerCreating", "")
    for events, conditions, reason in (
        ([NO_SHARE, {"reason": "Pulling"}], [], ""),  # mount-then-pulling
        ([NO_NETWORK], SANDBOX_READY, ""),  # sandbox-then-ready-condition
        ([NOT_ATTACHED, {"reason": "SuccessfulAttachVolume"}], [], ""),
        ([NOT_ATTACHED, NO_NETWORK], [], "FailedCreatePodSandBox: no network"),  # attached-then-no-network
        ([{"reason": "Pulled"}, NO_NETWORK], [], "FailedCreatePodSandBox: no network"),  # after-reboot
    ):
        pending_pod = make_pod(phase="Pending", containerStatuses=creating, conditions=conditions)
        assert pod_state(pending_pod, events).reason == reason


def test_state_of_a_job_follows_its_conditions() -> None:
    for kinds, state in (
        (("Running", "Succeeded"), "done"),
        (("Running", "Failed"), "failed"),
        (("Suspended",), "suspended"),
    ):
        conditions = [{"type": kind, "status": "True", "reason": "x"} for kind in kinds]
        conditions.append({"type": "Restarting", "status": "False"})
        assert job_state({"status": {"conditions": conditions}}).state == state


def test_failed_job_waits_for_its_pods_except_those_on_lost_nodes() -> None:
    job = {"status": {"conditions": [{"type": "FailureTarget", "status": "True", "message": "backoff limit"}]}}
    failed = PodState(pod="orch-x-0", node="worker-0", state="failed")
    for state, lost, result in (
        ("running", False, "running"),
        ("running", True, "running"),
        ("waiting", True, "failed"),
    ):
        pod = PodState(pod="orch-x-1", node="worker-1", state=state, lost=lost)
        assert job_state(job, [failed, pod]).state == result


STAMP = "2026-01-01T00:00:00Z"


def make_condition(kind: str, status: str, **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": STAMP} | more


def make_running_pod(*conditions: dict[str, Any], deleted: bool = False) -> dict[str, Any]:
    """Return a pod whose container runs, according to the API."""
    statuses = container_state(running={"startedAt": STAMP})
    pod = make_pod(phase="Running", conditions=list(conditions), containerStatuses=statuses)
    pod["spec"]["nodeName"] = "node-b"
    pod["metadata"] |= {"deletionTimestamp": STAMP} if deleted else {}
    return pod


SCHEDULED = make_condition("PodScheduled", "True")
READY = make_condition("Ready", "True")
CONTAINERS_READY = make_condition("ContainersReady", "True")
NOT_READY = make_condition("Ready", "False")
BY_TAINT = make_condition("DisruptionTarget", "True", reason="DeletionByTaintManager", message="Taint manager")
BY_EVICTION = make_condition("DisruptionTarget", "True", reason="EvictionByEvictionAPI", message="Eviction API")
NO_RESPONSE = "its node node-b does not respond"
DELETES = "the cluster deletes the pod"


def test_running_pod_that_is_about_to_be_lost_is_reported() -> None:
    not_ready = [make_condition(kind, "False", reason="ContainersNotReady") for kind in ("Ready", "ContainersReady")]
    for conditions, deleted, state, reason in (
        ([SCHEDULED, CONTAINERS_READY, NOT_READY], False, "waiting", NO_RESPONSE),  # node-not-ready
        ([NOT_READY, CONTAINERS_READY, BY_TAINT], True, "waiting", f"{NO_RESPONSE}; {DELETES}: Taint manager"),
        ([READY, BY_EVICTION], True, "running", f"{DELETES}: Eviction API"),  # its log is still read
        ([READY, CONTAINERS_READY], False, "running", ""),
        (not_ready, False, "running", ""),  # the container itself is not ready
    ):
        result = pod_state(make_running_pod(*conditions, deleted=deleted))
        assert (result.state, result.reason, result.lost) == (state, reason, bool(reason))


def make_event(event: str, rank: int, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "rank": rank, "time": time, **fields}


def outcome_of(events: list[dict[str, Any]], *pods: PodState, state: str = "failed", missing: bool = False) -> Any:
    job = JobState(state=state, reason="the job is gone" if missing else "backoff", missing=missing)
    return outcome(map(read_event, events), pods, job, began=0.0, now=9.0)


def make_exit(rank: int, time: float, code: int = 1, signal: str | None = None) -> dict[str, Any]:
    return make_event("exit", rank, time, node=f"worker-{rank}", code=code, signal=signal, stopped=False)


def test_rank_that_lost_its_peer_is_not_the_culprit() -> None:
    events = [
        make_event("exception", 0, 1.0, text="Connection closed by peer [10.0.0.1]"),
        make_exit(0, 1.1),
        make_event("exception", 1, 1.2, text="ValueError"),
        make_exit(1, 1.3),
    ]
    assert outcome_of(events).first_failure.rank == 1
    assert outcome_of(events).problem is None


def test_only_the_last_attempt_counts() -> None:
    events = [
        make_event("started", 0, 1.0, node="worker-0"),
        make_exit(0, 2.0),
        make_event("started", 0, 3.0, node="worker-0"),
        make_exit(0, 4.0, code=7),
    ]
    assert (outcome_of(events).first_failure.code, outcome_of(events).attempts) == (7, 2)
    refused = make_event("refused", -1, 3.5, text="no BF16")
    launched = make_event("launched", -1, 5.0, attempt=2)
    preempted = [events[2], make_event("preempted", 0, 4.0, step=12), make_exit(0, 4.0, code=75), launched, refused]
    result = outcome_of(preempted)
    assert (result.state, result.problem) == (FAILED, "no BF16"), "the resumed run was not preempted"
    result = outcome_of([refused, *events, launched], missing=True)
    assert (result.first_failure, result.problem) == (None, "the job is gone"), "no rank of the last attempt failed"


def test_pod_killed_for_memory_names_its_rank_once() -> None:
    events = [make_event("started", rank, 1.0, node=f"worker-{rank}") for rank in (0, 1)]
    killed = PodState(pod="p", node="worker-1", state="failed", reason="killed", oom=True)
    for exit_events in ([], [make_exit(1, 2.0, code=0)]):
        failure = outcome_of([*events, *exit_events], killed).first_failure
        assert (failure.rank, failure.signal, failure.oom) == (1, "SIGKILL", "killed")
    assert outcome_of(events, killed).problem is None, "it is reported once"
    evicted = PodState(pod="q", node="worker-0", state="failed", reason="evicted: disk pressure")
    assert outcome_of(events, killed, evicted).problem == "worker-0: evicted: disk pressure"


LOST = PodState(pod="p", node="worker-1", state="waiting", reason=NO_RESPONSE, lost=True)
DELETED = PodState(pod="q", node="worker-0", state="failed", reason="its pod was deleted")
EVICTED = PodState(pod="p", node="worker-1", state="failed", reason="evicted: memory")


def test_problem_is_reported_if_no_rank_failed() -> None:
    """Name a deleted pod unless a node was lost or the job deleted."""
    refused = make_event("refused", -1, 1.0, text="worker-0: no BF16")
    for events, pods, changes, problem in (
        ([], [], {}, "backoff"),
        ([refused], [], {}, "worker-0: no BF16"),
        ([], [EVICTED], {}, "worker-1: evicted: memory"),
        ([], [], {"state": "done"}, None),
        ([], [LOST, DELETED], {}, f"worker-1: {NO_RESPONSE}"),
        ([], [DELETED], {}, "worker-0: its pod was deleted"),
        ([], [DELETED], {"missing": True}, "the job is gone"),
    ):
        assert outcome_of(events, *pods, **changes).problem == problem


def test_ranks_that_ended_with_a_deleted_job_have_not_failed() -> None:
    for code in ({"code": 0, "signal": "SIGTERM"}, {"code": 143}):
        result = outcome_of([make_exit(0, 1.0, **code)], DELETED, missing=True)
        assert (result.problem, result.first_failure) == ("the job is gone", None)
    result = outcome_of([make_exit(0, 1.0, code=3)], DELETED, missing=True)
    assert result.first_failure.code == 3, "it failed before its job was deleted"


def test_checkpoint_of_a_deleted_job_is_named_but_the_run_does_not_resume() -> None:
    events = [make_event("preempted", 0, 1.0, step=7), make_exit(0, 2.0, code=75)]
    result = outcome_of(events, DELETED, missing=True)
    assert result.state == FAILED
    assert result.problem == "the job is gone; checkpoint at step 7"
