"""Check how the states of pods and jobs, log lines and API errors are interpreted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol.events import Joined, NodeNews, UnreadableEvent
from orch_node.protocol.events import read as read_event
from orch_node.protocol.outcome import Failure, Outcome
from orch_node.protocol.outcome import record as outcome_record

from orchestrator.targets.kubernetes import findings
from orchestrator.targets.kubernetes.api import errors
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.follow import Follower
from orchestrator.targets.kubernetes.init import token_secret, without_secrets
from orchestrator.targets.kubernetes.log_lines import Position, Reader, parse
from orchestrator.targets.kubernetes.outcome import outcome
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import JobState, PodState, job_state, node_of, pod_state

SETTINGS = KubernetesSettings(image="registry.example/orch:current", cpu="8", memory="16Gi")


def pod(**status: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"memory": "8Gi"}}, "image": "registry.example/x"}
    return {"metadata": {"name": "orch-x-worker-3"}, "spec": {"containers": [limits]}, "status": status}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"state": state}]


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("orch-2026-qa-ab12-worker-3", "worker-3"),
        ("orch-2026-qa-ab12-launcher-x7k2p", "launcher"),
        ("orch-2026-qa-ab12-node-0-11-x7k2p", "node-11"),
        ("orch-2026-qa-ab12-launcher-0-0-x7k2p", "launcher"),
        ("something", "something"),
    ],
)
def test_pods_have_the_names_of_the_plan(name: str, node: str) -> None:
    assert node_of(name) == node


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ({}, "waiting", ""),
        ({"phase": "Running", "containerStatuses": container(running={})}, "running", ""),
        ({"phase": "Succeeded"}, "done", ""),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "message": "pod has unbound immediate PersistentVolumeClaims",
                    }
                ],
            },
            "waiting",
            "waits for a node: pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": container(waiting={"reason": "ErrImagePull", "message": "not found"}),
            },
            "waiting",
            "its image registry.example/x cannot be pulled: not found",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": container(
                    waiting={"reason": "CreateContainerConfigError", "message": "no configmap"}
                ),
            },
            "waiting",
            "its container cannot be created: no configmap",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": container(waiting={"reason": "CrashLoopBackOff", "message": "back-off"}),
            },
            "waiting",
            "restarts repeatedly: back-off",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, "failed", "evicted: disk pressure"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "failed", "DeadlineExceeded"),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})},
            "failed",
            "killed because of its memory use (OOMKilled): the pod's limit is 8Gi",
        ),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 3})},
            "failed",
            "exited with code 3",
        ),
        ({"phase": "Failed"}, "failed", "failed without a reason"),
        ({"phase": "Unknown"}, "waiting", "its node does not respond"),
    ],
)
def test_the_state_of_a_pod_is_described(status: dict[str, Any], state: str, words: str) -> None:
    result = pod_state(pod(**status))
    assert (result.state, result.reason) == (state, words)


def test_a_command_that_is_missing_is_named() -> None:
    message = 'exec: "python4": executable file not found in $PATH'
    terminated = {"exitCode": 128, "reason": "StartError", "message": f"{message}\n"}
    result = pod_state(pod(phase="Failed", containerStatuses=container(terminated=terminated)))
    assert result.reason == f"exited with code 128 (StartError): {message}"


def test_a_deleted_pod_is_reported_as_deleted() -> None:
    """Report a deletion although the kubelet still reports the container's exit code."""
    deleted_pod = pod(phase="Failed", containerStatuses=container(terminated={"exitCode": 1}))
    deleted_pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_state(deleted_pod).reason == "its pod was deleted"


def test_an_image_that_cannot_be_pulled_is_reported_once() -> None:
    follower = Follower(cast(KubernetesClient, None), "")
    for reason, message in 3 * [("ErrImagePull", "denied"), ("ImagePullBackOff", "Back-off")]:
        waiting = container(waiting={"reason": reason, "message": message})
        # The phase is Running because the follower queries the events of pending pods only.
        changed_pod = pod(phase="Running", containerStatuses=waiting)
        changed_pod["metadata"]["uid"] = "1"
        follower.handle_change("MODIFIED", changed_pod)
    event = follower.items.get()
    assert isinstance(event, NodeNews)
    assert event.text == "worker-3: its image registry.example/x cannot be pulled: denied"
    assert follower.items.empty()


def test_a_volume_that_is_not_mounted_is_in_the_events() -> None:
    events = [{"reason": "Scheduled"}, {"reason": "FailedMount", "message": "no such share"}]
    waiting = container(waiting={"reason": "ContainerCreating"})
    result = pod_state(pod(phase="Pending", containerStatuses=waiting), events)
    assert result.reason == "FailedMount: no such share"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        pytest.param(None, "FailedScheduling: 0/3 nodes are available", id="no-node-yet"),
        pytest.param("node-a", "", id="has-a-node"),
    ],
)
def test_an_event_about_scheduling_is_outdated_once_the_pod_has_a_node(node: str | None, words: str) -> None:
    events = [{"reason": "FailedScheduling", "message": "0/3 nodes are available"}]
    waiting = container(waiting={"reason": "ContainerCreating"})
    pending_pod = pod(phase="Pending", containerStatuses=waiting)
    pending_pod["spec"] |= {"nodeName": node} if node else {}
    assert pod_state(pending_pod, events).reason == words


NO_SHARE = {"reason": "FailedMount", "message": "no such share"}
NO_NETWORK = {"reason": "FailedCreatePodSandBox", "message": "no network"}
NOT_ATTACHED = {"reason": "FailedAttachVolume", "message": "disk is busy"}
SANDBOX_READY = [{"type": "PodReadyToStartContainers", "status": "True"}]


@pytest.mark.parametrize(
    ("events", "conditions", "words"),
    [
        pytest.param([NO_SHARE, {"reason": "Pulling"}], [], "", id="mount-then-pulling"),
        pytest.param([NO_NETWORK, {"reason": "Pulled"}], [], "", id="sandbox-then-pulled"),
        pytest.param([NO_SHARE], SANDBOX_READY, "", id="mount-then-ready-condition"),
        pytest.param([NO_NETWORK], SANDBOX_READY, "", id="sandbox-then-ready-condition"),
        pytest.param([NOT_ATTACHED, {"reason": "SuccessfulAttachVolume"}], [], "", id="attached"),
        pytest.param(
            [NOT_ATTACHED, NO_NETWORK], [], "FailedCreatePodSandBox: no network", id="attached-then-no-network"
        ),
        pytest.param([NO_SHARE, {"reason": "SuccessfulAttachVolume"}], [], "FailedMount: no such share", id="mount"),
        pytest.param([{"reason": "Pulled"}, NO_NETWORK], [], "FailedCreatePodSandBox: no network", id="after-reboot"),
    ],
)
def test_an_event_about_starting_is_outdated_once_the_pod_is_past_it(
    events: list[dict[str, Any]], conditions: list[dict[str, Any]], words: str
) -> None:
    waiting = container(waiting={"reason": "ContainerCreating"})
    pending_pod = pod(phase="Pending", containerStatuses=waiting, conditions=conditions)
    assert pod_state(pending_pod, events).reason == words


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ((), "running"),
        (("Created", "Running"), "running"),
        (("Running", "Succeeded"), "done"),
        (("Complete",), "done"),
        (("Running", "Failed"), "failed"),
        (("Suspended",), "suspended"),
    ],
)
def test_a_job_by_its_conditions(kinds: tuple[str, ...], state: str) -> None:
    conditions = [{"type": kind, "status": "True", "reason": "x"} for kind in kinds]
    conditions.append({"type": "Restarting", "status": "False"})
    assert job_state({"status": {"conditions": conditions}}).state == state


# Logs.


def test_log_lines_are_assigned_to_files() -> None:
    assert parse("[12] loss [3]", ranks=16).rank == 12
    assert (parse("[12] loss [3]", ranks=16).file, parse("[12] x", ranks=16).text) == ("ranks/rank-12.log", "x")
    assert parse("[0] ", ranks=16).text == parse("[0]", ranks=16).text == ""
    # torchrun prints such a line in its list of failures on the pod's standard error.
    assert parse("[0]:", ranks=16).file == "launcher.log"
    event = json.dumps({"event": "joined", "rank": 1, "time": 1})
    assert parse(event, ranks=16).event == Joined(rank=1, time=1)
    metrics = parse(json.dumps({"metrics": 3, "line": '{"step": 1}'}), ranks=16)
    assert (metrics.file, metrics.text) == ("ranks/rank-3.metrics.jsonl", '{"step": 1}')
    for line in (
        "W1121 torchrun",
        "[16] x",
        "[٣] x",
        '{"metrics": -1}',
        '{"metrics": true}',
        "{" * 9999,
        "{torn",
        '{"a": 1}',
        "[x] y",
    ):
        assert parse(line, ranks=16).file == "launcher.log"
    assert isinstance(parse('{"event": 1, "rank": 2}', ranks=16).event, UnreadableEvent)


TIMES = st.lists(st.integers(0, 5), max_size=30).map(sorted)


@settings(deadline=None)
@given(times=TIMES, cuts=st.lists(st.integers(0, 30), max_size=4), nano=st.sampled_from([1, 10**8]))
def test_each_line_is_read_once_however_often_the_stream_breaks(times: list[int], cuts: list[int], nano: int) -> None:
    """Read each line once although lines share timestamps and the API resumes at whole seconds."""
    log = []
    for index, time in enumerate(times):
        fraction = f"{time * nano:09d}".rstrip("0")
        log.append(f"2026-01-01T00:00:01{'.' if fraction else ''}{fraction}Z line {index}")
    reader, lines_read = Reader(Position()), []
    for cut in [*cuts, len(log)]:
        assert reader.since in (None, "2026-01-01T00:00:01Z")
        lines_read += [text for line in log[:cut] if (text := reader.new(line)) is not None]
        reader = Reader(reader.position)
    assert lines_read == [f"line {index}" for index in range(len(log))]


# Outcomes.


def told(event: str, rank: int, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "rank": rank, "time": time, **fields}


def ended(events: list[dict[str, Any]], *pods: PodState, state: str = "failed") -> Outcome:
    parsed_events = map(read_event, events)
    return outcome(parsed_events, pods, JobState(state=state, reason="backoff"), began=0.0, now=9.0)


def failure_of(events: list[dict[str, Any]], *pods: PodState) -> Failure:
    failure = ended(events, *pods).first_failure
    assert failure is not None
    return failure


def exit_of(rank: int, time: float, code: int = 1, **fields: Any) -> dict[str, Any]:
    return told("exit", rank, time, node=f"worker-{rank}", code=code, signal=None, stopped=False, **fields)


def test_a_rank_that_lost_its_peer_is_not_the_culprit() -> None:
    events = [
        told("exception", 0, 1.0, text="Connection closed by peer [10.0.0.1]"),
        exit_of(0, 1.1),
        told("exception", 1, 1.2, text="ValueError"),
        exit_of(1, 1.3),
    ]
    assert failure_of(events).rank == 1
    assert ended(events).problem is None


def test_the_rank_that_all_ranks_name_is_the_culprit() -> None:
    """Blame the rank that all ranks name in their error, as the supervisor does for SSH runs."""
    text = "error: rank 1 on worker-1: cannot write checkpoint-4: No space left on device."
    events = [
        told("exception", 0, 1.0, text=text),
        exit_of(0, 1.1),
        told("exception", 1, 1.2, text=text),
        exit_of(1, 1.3),
    ]
    assert failure_of(events).rank == 1


def test_a_rank_whose_backend_aborts_after_a_lost_peer_is_not_the_culprit() -> None:
    message = "terminate called: Connection closed by peer [10.0.0.2]"
    aborted = exit_of(0, 1.0, code=0, text=message) | {"signal": "SIGABRT"}
    assert failure_of([aborted, exit_of(1, 1.5, code=9, text="no data")]).text == "no data"


def test_only_the_last_attempt_counts() -> None:
    events = [
        told("started", 0, 1.0, node="worker-0"),
        exit_of(0, 2.0),
        told("started", 0, 3.0, node="worker-0"),
        exit_of(0, 4.0, code=7),
    ]
    assert (failure_of(events).code, ended(events).attempts) == (7, 2)


def test_a_pod_killed_for_memory_names_its_rank() -> None:
    events = [told("started", rank, 1.0, node=f"worker-{rank}") for rank in (0, 1)]
    killed = PodState(pod="p", node="worker-1", state="failed", reason="killed", oom=True, code=137)
    for exit_events in ([], [exit_of(1, 2.0, code=0)]):
        failure = failure_of([*events, *exit_events], killed)
        assert (failure.rank, failure.signal, failure.oom) == (1, "SIGKILL", "killed")


def test_a_pod_killed_for_memory_is_reported_once() -> None:
    events = [told("started", rank, 1.0, node=f"worker-{rank}") for rank in (0, 1)]
    killed = PodState(pod="p", node="worker-1", state="failed", reason="killed for memory", oom=True, code=137)
    result = ended(events, killed)
    assert (result.first_failure is not None, result.problem) == (True, None)
    evicted = PodState(pod="q", node="worker-0", state="failed", reason="evicted: disk pressure")
    assert ended(events, killed, evicted).problem == "worker-0: evicted: disk pressure"


def test_the_problem_is_reported_if_no_rank_failed() -> None:
    assert ended([]).problem == "backoff"
    refused = told("refused", -1, 1.0, text="worker-0: no BF16")
    assert ended([refused]).problem == "worker-0: no BF16"
    evicted = PodState(pod="p", node="worker-1", state="failed", reason="evicted: memory")
    assert ended([], evicted).problem == "worker-1: evicted: memory"
    assert ended([], state="done").problem is None


def test_the_outcome_of_the_supervisor_wins() -> None:
    recorded_outcome = Outcome(
        state="failed", first_failure=Failure(rank=5), problem=None, launcher_code=1, started=1.0, ended=2.0
    )
    assert ended([told("outcome", -1, 1.0, outcome=outcome_record(recorded_outcome))]) == recorded_outcome


# Checks.


def node(cpu: str = "16", memory: str = "64Gi", **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    return {
        "metadata": {"name": "n", "labels": labels},
        "spec": more,
        "status": {"allocatable": {"cpu": cpu, "memory": memory}},
    }


def test_nodes_with_enough_resources_are_counted() -> None:
    taint = {"key": "x", "effect": "NoSchedule"}
    nodes = [node(), node("7900m"), node(taints=[taint]), node(unschedulable=True)]
    assert findings.nodes_finding(nodes, SETTINGS, 2).state == "ok"
    short = findings.nodes_finding(nodes, SETTINGS, 3)
    assert short.state == "miss"
    assert "1 of 4 nodes can take pods of 8 CPUs and 16Gi, 2 such pods in all" in short.message
    assert "16 allocatable CPUs" in short.cure
    assert findings.nodes_finding(None, SETTINGS, 1).state == "unknown"
    assert findings.nodes_finding([], SETTINGS, 1).state == "miss"


@pytest.mark.parametrize(
    ("tolerations", "affinity", "fitting"),
    [
        ((), (), 0),
        (("dedicated=training:NoSchedule",), (), 1),
        (("dedicated=training",), ("zone in (a, b)", "disk", "!spot"), 1),
        (("dedicated",), ("zone notin (c)",), 1),
        (("dedicated:NoExecute",), (), 0),
        (("dedicated=other:NoSchedule",), (), 0),
        (("dedicated",), ("zone in (b)",), 0),
        (("dedicated",), ("spot",), 0),
        (("dedicated",), ("!disk",), 0),
        (("dedicated",), ("zone notin (a)",), 0),
    ],
)
def test_tolerations_and_affinity_select_nodes(
    tolerations: tuple[str, ...], affinity: tuple[str, ...], fitting: int
) -> None:
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    tainted_node = node(taints=[taint], labels={"zone": "a", "disk": "nvme"})
    kubernetes = replace(SETTINGS, tolerations=tolerations, node_affinity=affinity)
    description = findings.nodes_finding([tainted_node], kubernetes, 1).message
    assert f"{fitting} of 1 nodes can take pods" in description


def test_bf16_by_the_labels_of_the_nodes() -> None:
    able = node(labels={findings.BF16_LABELS[0]: "true"})
    assert findings.flags_finding([able], SETTINGS).state == "ok"
    mixed = findings.flags_finding([able, node()], SETTINGS)
    assert (mixed.state, mixed.message) == (
        "absent",
        "on 1 of 2 nodes that fit; a run with a pod on another node trains in fp32",
    )
    assert findings.flags_finding([node()], SETTINGS).state == "unknown"


def test_volumes() -> None:
    bound = {"status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    single_writer = {**bound, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert findings.claim_finding(bound, SETTINGS, 2).state == "ok"
    assert findings.claim_finding(single_writer, SETTINGS, 1).state == "ok"
    for claim, expected in ((None, "no claim"), ({}, "Pending"), (single_writer, "cannot share")):
        finding = findings.claim_finding(claim, SETTINGS, 2)
        assert (finding.state, expected in finding.message, bool(finding.cure)) == ("miss", True, True)


def test_kinds_and_rights() -> None:
    kinds = findings.kinds_findings({"pytorchjob": ("v1",)}, None)
    assert [finding.state for finding in kinds] == ["ok", "absent", "absent", "absent"]
    assert {finding.state for finding in findings.kinds_findings({}, None)} == {"miss"}
    assert findings.kinds_findings({"mpijob": ("v1",)}, "mpijob")[1].message.endswith("only v1")
    missing = [("patch", "kubeflow.org", "pytorchjobs", "a PyTorchJob")]
    assert "verbs [patch]" in findings.rights_finding(missing, "team").cure
    assert findings.rights_finding([], "team").state == "ok"


def test_a_token_is_never_shown() -> None:
    secret = token_secret(SETTINGS, "hf_secret")
    assert "hf_secret" not in json.dumps(without_secrets(secret))
    assert secret["data"]["HF_TOKEN"] not in json.dumps(without_secrets(secret))


# Errors of the API.


class Answered(Exception):
    """An error response of the API, as the client raises it."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status, self.body = status, body


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        ('pods is forbidden: User "me" cannot list resource "pods"', "Not allowed", "the required rights"),
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": seccompProfile',
            "The cluster refuses it: pods",
            "pod-security.kubernetes.io/enforce",
        ),
        ('pods "x" is forbidden: exceeded quota: q, requested: cpu=2', "exceeded quota", "quota"),
        (
            'persistentvolumeclaims "orch" is forbidden: only dynamically provisioned pvc can be resized',
            "only dynamically provisioned",
            "",
        ),
    ],
)
def test_only_a_missing_right_hints_at_the_required_rights(said: str, words: str, hint: str) -> None:
    error = errors.to_execute_error(Answered(403, json.dumps({"message": said})), "lab")
    assert isinstance(error, errors.Refused)
    assert words in error.message
    assert hint in error.hint
    assert ("lists the required rights" in error.hint) is (" cannot " in said)
