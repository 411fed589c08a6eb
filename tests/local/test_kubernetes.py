"""Run orch against an API server that speaks the real wire format."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import tomllib
import yaml
from orch_node.protocol import files

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.runs import store
from orchestrator.targets.kubernetes import watch
from orchestrator.targets.kubernetes.status import PodState
from orchestrator.targets.kubernetes.volume import PodExec
from orchestrator.targets.kubernetes.watch import KubernetesHandle, mark_volume
from tests.local.kubernetes_runs import (
    FAILED,
    PYTORCHJOB,
    RUNNING,
    TWO_PODS,
    KubernetesRun,
    add_event,
    await_new_pod,
    get_object,
    in_background,
    rank_event,
    rank_exited,
    rank_started,
    set_pod_status,
    start_run,
)
from tests.local.runs import SUM_SCRIPT, Orch, expect_exit, read_events, run_in, start_orch, wait_for_exit, write_script
from tests.support.kubernetes_api import NAMESPACE, Api, make_client
from tests.support.kubernetes_http import Handler
from tests.support.kubernetes_operator import Operator
from tests.support.ports import free_port

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OTHER_CONTROLLER = ("--inventory", "k8s", "--runs-dir", "elsewhere")
UNBOUND_CLAIM = "pod has unbound immediate PersistentVolumeClaims"

# Start.


def test_run_trains_and_is_recorded(api: Api, orch: Orch, tmp_path: Path) -> None:
    """Run torchrun in two pods, which are processes of this machine; test_kubernetes_project.py uses plain Jobs."""
    options = ("--launcher", "trainjob", "--backend", "gloo", "--k8s", "ttl=0", "--", "$(HOME)", "two words")
    wait = in_background(orch, "train", write_script(tmp_path, SUM_SCRIPT), *TWO_PODS, *options)
    Operator(api).run("trainjobs", free_port())
    job_set = get_object(api, "trainingruntimes")["spec"]["template"]["spec"]
    assert "ttlSecondsAfterFinished" not in job_set, "the trainer would create the JobSet again and repeat the run"
    process = expect_exit(wait())
    assert "all 2 ranks joined on gloo" in process.stderr
    line = "sum 2.0 ['$(HOME)', 'two words']"
    assert process.stdout.count(f"{line}\n") == 1, "the line of rank 0 is shown"
    assert orch("logs").stdout.count(line) == 2
    (local_run,) = json.loads(orch("runs", "--json").stdout)["runs"]
    (cluster_run,) = json.loads(orch("runs", "--inventory", "k8s", "--json").stdout)["runs"]
    assert local_run["state"] == "done"
    assert (cluster_run["id"], cluster_run["state"]) == (local_run["id"], "done")
    expect_exit(orch("report"))
    assert list((tmp_path / "runs" / local_run["id"]).glob("ranks/rank-*.metrics.jsonl"))


def test_refused_request_is_reported_and_leaves_nothing(api: Api, orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path), *PYTORCHJOB, "--backend", "gloo")
    api.state.denied_permissions.add(("patch", "pytorchjobs"))
    forbidden = expect_exit(orch(*train), 1).stderr
    assert 'User "me" cannot patch resource "pytorchjobs"' in forbidden
    assert "orch k8s role" in forbidden
    api.state.denied_permissions.clear()
    del api.state.groups["kubeflow.org"]
    assert "The cluster has no PyTorchJob kubeflow.org/v1" in expect_exit(orch(*train), 1).stderr
    assert api.names("configmaps") == []
    assert not list((tmp_path / "runs").glob("*/"))
    api.fail_requests("DELETE", "configmaps", 409)
    remaining = expect_exit(orch(*train), 1).stderr
    config_map = get_object(api, "configmaps", api.names("configmaps")[0])
    assert "Objects of the run may remain" in remaining
    assert f"--selector orch/run={config_map['metadata']['labels']['orch/run']}" in remaining


def test_started_run_is_followed_although_its_files_get_no_owner(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.fail_requests("PATCH", "configmaps.*fieldManager=orch-owner", 403)
    expect_exit(orch("stop", start_run(api, orch, tmp_path).id))
    assert api.names("pytorchjobs") == api.names("configmaps") == []


@pytest.mark.usefixtures("api")
def test_missing_package_is_reported_with_its_extra(tmp_path: Path) -> None:
    arguments = ["train", write_script(tmp_path), *PYTORCHJOB]
    program = "import sys; sys.modules['kubernetes'] = None\nfrom orchestrator.cli.main import main\n"
    process = run_in(tmp_path, sys.executable, "-c", f"{program}sys.argv[1:] = {arguments!r}\nmain()")
    requirement = expect_exit(process, 2).stderr.partition("pip install '")[2].partition("'")[0]
    assert requirement
    assert requirement in tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["k8s"]


# Pods that wait.


def test_refusal_of_pods_is_reported_once_for_all_their_random_names(api: Api, run: KubernetesRun) -> None:
    handle = KubernetesHandle(store.load(run.folder).record, run.folder)
    handle.cluster = make_client(api.url)
    add_event(api, "orch-another", "FailedCreate", "of another job", lastTimestamp="2126-01-01T00:00:09Z")
    add_event(api, run.job, "FailedCreate", "of the last attempt", lastTimestamp="2026-01-01T00:00:09Z")

    def refuse(number: int, name: str, reason: str, request: str) -> None:
        message = f'pods "{run.job}-x{number}" is forbidden: exceeded quota: small, requested: {request}'
        add_event(api, name, reason, message, lastTimestamp=f"2126-01-01T00:00:0{number}Z")
        assert handle.poll() is None

    assert handle.poll() is None
    refuse(0, run.job, "FailedCreatePod", "cpu=2")
    refuse(1, f"{run.job}-node-0", "FailedCreate", "cpu=2")
    refuse(2, run.job, "FailedCreate", "cpu=4")
    handle.watched = True
    run.set_pod(0, {"phase": "Pending"})
    refuse(3, run.job, "FailedCreate", "cpu=4")
    run.set_pod(1, {"phase": "Pending"})
    handle.copy.began = 0.0
    assert handle.poll() is None, "a job that has pods has an operator, also without a status"
    messages = [event.text.partition(" is forbidden: ") for event in handle.follower.items.queue]
    assert [(text.partition(":")[0], quota[-5:]) for text, _, quota in messages] == [
        ("its pods are not admitted", "cpu=2"),
        ("its pods are not admitted", "cpu=4"),
        ("some of its pods are not admitted", "cpu=4"),
    ]


def test_event_that_comes_long_after_the_last_change_of_its_pod_is_reported(api: Api, run: KubernetesRun) -> None:
    """Add an event without a change of the pod, as the kubelet does when it has waited minutes for a volume."""
    handle = KubernetesHandle(store.load(run.folder).record, run.folder)
    handle.cluster = make_client(api.url)
    handle.watched = True
    add_event(api, f"{run.job}-worker-0", "FailedMount", "of a pod of the last attempt")
    names = [run.set_pod(number, {"phase": "Pending"}) for number in (0, 1)]
    assert handle.poll() is None
    add_event(api, names[1], "FailedMount", "the server does not respond")
    for _ in names:
        assert handle.poll() is None
    (event,) = handle.follower.items.queue
    assert event.text == "worker-1: FailedMount: the server does not respond"


def test_run_that_waits_longer_than_its_limit_is_ended(api: Api, orch: Orch, tmp_path: Path) -> None:
    options = ("--backend", "gloo", "--wait-limit", "5")
    wait = in_background(orch, "train", write_script(tmp_path), *PYTORCHJOB, *options)
    (job,) = api.wait_for(lambda: api.names("pytorchjobs"), 60.0)
    run = KubernetesRun(api, orch, tmp_path, job)
    run.finish("Suspended")
    unscheduled = {"type": "PodScheduled", "status": "False", "message": UNBOUND_CLAIM}
    run.set_pod(0, {"phase": "Pending", "conditions": [unscheduled]})
    process = expect_exit(wait(), 1)
    reasons = f"worker-0: waits for a node: {UNBOUND_CLAIM}; suspended by Kueue"
    assert f"have not started within 5 s (--wait-limit): {reasons}" in process.stderr
    assert api.names("pytorchjobs") == api.names("configmaps") == []
    api.wait_for(lambda: not api.names("pods"))


def test_wait_limit_does_not_apply_once_ranks_have_started(api: Api, orch: Orch, tmp_path: Path) -> None:
    run = start_run(api, orch, tmp_path, "--wait-limit", "1")
    metadata = get_object(api, "pytorchjobs", run.job)["metadata"]
    run.update_job(metadata={**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"})
    (run.folder / "events.jsonl").write_text(rank_event("started", 0, node="worker-0", pid=1) + "\n")
    wait = run.attach()
    api.add_log_lines(run.set_pod(0, RUNNING), "[0] hello", end=True)
    api.wait_for(lambda: sum(path.endswith(f"/pytorchjobs/{run.job}") for _, path in api.state.requests) > 3)
    run.finish("Succeeded")
    expect_exit(wait())


def test_wait_limit_is_in_cluster_time(api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(api, orch, tmp_path, "--wait-limit", "600")
    metadata = get_object(api, "pytorchjobs", run.job)["metadata"]
    run.update_job(metadata={**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"})
    handle = KubernetesHandle(store.load(run.folder).record, run.folder)
    handle.cluster = make_client(api.url)
    monkeypatch.setattr(watch, "delete_objects", lambda *_: None)
    for clock, is_late in (("00:10:00", False), ("00:10:01", True)):
        date = f"Thu, 01 Jan 2026 {clock} GMT"
        monkeypatch.setattr(Handler, "date_time_string", lambda self, timestamp=None, date=date: date)
        assert handle.poll() is None
        assert (handle.end_late_start() is not None) == is_late, clock


# Failures of ranks, pods and nodes.


def test_first_failing_rank_is_named_although_streams_break(api: Api, run: KubernetesRun) -> None:
    wait = run.attach()
    names = [run.set_pod(index, RUNNING) for index in (0, 1)]
    api.state.drop_streams = 4
    for rank, name in enumerate(names):
        api.add_log_lines(name, rank_started(rank), *(f"[{rank}] line {number}" for number in range(50)))
    api.wait_for(lambda: read_events(run.folder, "started"), 60.0)
    for rank, text in enumerate(("Connection closed by peer", "ValueError: enough")):
        api.add_log_lines(names[rank], rank_event("exception", rank, text=text), rank_exited(rank), end=True)
    for index in (0, 1):
        run.set_pod(index, FAILED)
    run.finish("Failed")
    process = expect_exit(wait(), 1)
    assert "failed: rank 1 on worker-1 exited with code 1" in process.stderr
    assert "ValueError: enough" in process.stderr
    for rank in (0, 1):
        lines = run.log(rank).read_text().splitlines()
        assert lines == [f"line {number}" for number in range(50)], "each line is recorded once and in order"


# Failures of the API.


def test_run_survives_failures_of_the_api(api: Api, orch: Orch, tmp_path: Path) -> None:
    """Be busy, and refuse requests as an API server that has not loaded its roles yet."""
    api.fail_requests("PATCH", "pytorchjobs", 429, 1, Retry_After="3600")
    api.fail_requests("PATCH", "configmaps", 503, 2)
    run = start_run(api, orch, tmp_path)
    api.fail_requests("GET", "/pods\\?", 504)
    wait = run.attach()
    run.await_request("/pods?", 2)
    api.fail_requests("GET", "pytorchjobs", 500, 3)
    name = run.set_pod(0, RUNNING)
    run.await_request("/log")
    for pattern in ("/pods\\?", "/log", "pytorchjobs"):
        api.fail_requests("GET", pattern, 403, 3)
    api.state.drop_streams = 2
    api.add_log_lines(name, "[0] hello")
    run.set_pod(0, {**RUNNING, "qosClass": "Guaranteed"})
    api.wait_for(lambda: not any(failure.times for failure in api.state.failures), 60.0)
    api.add_log_lines(name, "[0] goodbye", end=True)
    run.succeed()
    expect_exit(wait())
    assert run.log().read_text() == "hello\ngoodbye\n"


def test_expired_token_does_not_end_the_run(api: Api, run: KubernetesRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REFUSED_SECONDS", 1.0)
    handle = KubernetesHandle(store.load(run.folder).record, run.folder)
    handle.cluster = make_client(api.url)
    api.fail_requests("GET", "pytorchjobs", 401, 9999)
    with pytest.raises(ExecuteError, match="Authentication with the API") as exc_info:
        list(handle.events())
    assert "The run continues" in exc_info.value.message
    assert "Log in again" in exc_info.value.hint
    assert f"orch attach {run.id}" in exc_info.value.hint
    assert api.names("pytorchjobs") == [run.job]
    handle.leave()


# Logs.


def test_logs_have_the_traceback_of_a_run_that_nobody_watched(api: Api, run: KubernetesRun, tmp_path: Path) -> None:
    names = [run.set_pod(index, RUNNING) for index in (0, 1)]
    api.add_log_lines(names[0], "[0] ValueError: enough", rank_exited(), end=True)
    run.set_pod(0, FAILED)
    api.remove("pods", names[1])  # as the training operator deletes pods that still run
    run.finish("Failed")
    assert run.state() == "failed"
    ranks = tmp_path / "volume" / "runs" / run.id / "ranks"
    ranks.mkdir(parents=True)
    (ranks / "rank-0.log").write_text("ValueError: enough\n")
    (ranks / "rank-1.log").write_text("Connection closed\n")
    wait = in_background(run.orch, "logs", run.id)
    set_pod_status(api, RUNNING, "-reader")
    process = expect_exit(wait())
    assert process.stdout == "[0 worker-0] ValueError: enough\n[1 worker-1] Connection closed\n"
    assert api.names("pods") == names[:1], "the pod that has read the volume is deleted"
    assert expect_exit(run.orch("logs", run.id)).stdout == process.stdout
    assert [event["event"] for event in read_events(run.folder)] == ["launched", "exit", "finished"]


def test_unreadable_log_is_reported(api: Api, orch: Orch, run: KubernetesRun) -> None:
    name = run.set_pod(0, RUNNING)
    api.add_log_lines(name, "[0] hello")
    assert orch("logs", run.id).stdout == "[0 worker-0] hello\n"
    api.fail_requests("GET", f"{name}/log", 403, 99)
    process = expect_exit(orch("logs", run.id), 1)
    assert process.stdout == "[0 worker-0] hello\n"
    assert "Lines may be missing: worker-0: " in process.stderr
    assert "The cluster refuses it" in process.stderr
    assert "its log could not be copied" in expect_exit(orch("stop", run.id)).stdout
    assert api.names("pytorchjobs") == []


def test_logs_follow_lines_while_another_command_watches_the_run(api: Api, run: KubernetesRun, tmp_path: Path) -> None:
    wait = run.attach()
    name = run.set_pod(0, RUNNING)
    run.await_request("/log")  # the pod runs, but has no log yet
    with start_orch(tmp_path, "logs", run.id, "--follow", stderr=None) as process:
        threading.Timer(60, process.kill).start()
        for number in range(3):  # without events in between
            api.add_log_lines(name, f"[0] line {number}", end=number == 2)
            assert process.stdout.readline() == f"[0 worker-0] line {number}\n"
        run.succeed()
        expect_exit(wait())
        assert wait_for_exit(process).stdout == ""


def set_with_proxy(api: Api, name: str, **state: object) -> None:
    """Add the proxy of a service mesh to a pod, as a webhook does, and set the state of orch's container."""
    pod = get_object(api, "pods", name)
    container = pod["spec"]["containers"][0]
    proxy = {"name": "istio-proxy", "state": {"running": {}}}  # sorted before orch's container
    status = {"phase": "Running", "containerStatuses": [proxy, {"name": container["name"], "state": state}]}
    api.put(
        "pods", {**pod, "spec": {**pod["spec"], "containers": [container, {"name": proxy["name"]}]}, "status": status}
    )


def test_container_that_a_webhook_adds_is_not_that_of_the_ranks(api: Api, run: KubernetesRun, tmp_path: Path) -> None:
    name = run.set_pod(0, {"phase": "Pending"})
    set_with_proxy(api, name, running={})
    wait = run.attach()
    api.add_log_lines(name, rank_started(), "[0] hello", rank_exited(), end=True)
    api.wait_for(run.log().exists)
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "weights").write_text("trained")
    fetch = in_background(run.orch, "fetch", run.id, "--from", str(tmp_path / "volume"))
    set_with_proxy(api, await_new_pod(api, [], "-reader")["metadata"]["name"], running={})
    expect_exit(fetch())
    set_with_proxy(api, name, terminated={"exitCode": 1})
    api.wait_for(lambda: "istio-proxy" in (run.folder / "events.jsonl").read_text())
    run.finish("Failed")
    process = expect_exit(wait(), 1)
    assert "rank 0 on worker-0 exited with code 1" in process.stderr
    assert "worker-0: exited with code 1; its ranks have ended, but containers that orch has" in process.stderr


# Stop.


def test_stop_deletes_the_objects_of_a_watched_run_and_keeps_its_log(api: Api, orch: Orch, run: KubernetesRun) -> None:
    unrelated = api.put("configmaps", {"metadata": {"name": "other", "labels": {"orch/run": run.id}}})
    wait = run.attach()
    api.add_log_lines(run.set_pod(0, RUNNING), "[0] last words")
    api.wait_for(run.log().exists)
    assert "worker-0" in expect_exit(orch("stop", run.id, warm=False)).stdout
    assert api.names("pytorchjobs") == api.names("pods") == []
    assert api.names("configmaps") == [unrelated["metadata"]["name"]]
    expect_exit(wait(), 130)
    assert run.log().read_text() == "last words\n"
    assert run.state() == "stopped"
    assert orch("runs", "show", run.id).stdout.count("state: ") == 1
    assert len(read_events(run.folder, "finished")) == 1


def test_stop_keeps_a_job_with_the_labels_of_another_run(api: Api, orch: Orch, run: KubernetesRun) -> None:
    job = get_object(api, "pytorchjobs", run.job)
    job["metadata"]["labels"]["orch/run"] = "another"
    api.put("pytorchjobs", job)
    assert "does not have the labels of run" in expect_exit(orch("stop", run.id), 1).stderr
    assert api.names("pytorchjobs") == [run.job]
    assert not (run.folder / "stop").exists(), "the run continues, and may fail later"


def test_ctrl_c_stops_the_run(api: Api, tmp_path: Path) -> None:
    with start_orch(tmp_path, "train", write_script(tmp_path), *PYTORCHJOB) as process:
        api.wait_for(lambda: any("/pods?" in path for _, path in api.state.requests))
        process.send_signal(signal.SIGINT)
        wait_for_exit(process, 130)
    assert api.names("pytorchjobs") == api.names("configmaps") == []


# Another controller.


def test_resumed_run_stays_in_its_cluster_and_namespace(api: Api, orch: Orch, run: KubernetesRun) -> None:
    """Change the current context of the kubeconfig between the attempts."""
    run.finish("Failed")
    first = get_object(api, "pytorchjobs")["metadata"]["uid"]
    path = Path(os.environ["KUBECONFIG"])
    config = yaml.safe_load(path.read_text())
    config["clusters"].append({"name": "other", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}})
    config["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "me"}})
    path.write_text(yaml.safe_dump(config | {"current-context": "other"}))
    expect_exit(orch("resume", run.id, "--detach"))
    second = get_object(api, "pytorchjobs")["metadata"]
    assert second["uid"] != first
    assert second["namespace"] == NAMESPACE
    location = store.load(run.folder).record.location
    assert (location["context"], location["namespace"]) == ("lab", NAMESPACE)


def test_another_controller_finds_the_run(api: Api, orch: Orch, run: KubernetesRun) -> None:
    assert len(api.names("configmaps")) == 2, "the files of the run, and its project"
    api.add_log_lines(run.set_pod(0, RUNNING), "[0] hello")
    assert expect_exit(orch("logs", run.id, *OTHER_CONTROLLER)).stdout == "[0 worker-0] hello\n"


# Fetch.


def test_output_is_fetched_through_a_pod_while_an_earlier_one_is_deleted(api: Api, orch: Orch, tmp_path: Path) -> None:
    run = json.loads(orch("train", "bert-qa", *PYTORCHJOB, "--detach", "--json").stdout)["run_id"]
    weights = Path("runs", run, "output", "model", "weights")
    source = tmp_path / "volume" / weights
    source.parent.mkdir(parents=True)
    api.state.grace_seconds = 15.0
    known_uids: list[str] = []
    for _ in range(2):
        source.write_bytes(os.urandom(200_000))
        wait = in_background(orch, "fetch", run)
        reader = await_new_pod(api, known_uids)
        assert reader["spec"]["containers"][0]["volumeMounts"][0]["readOnly"]
        api.put("pods", {**reader, "status": RUNNING})
        expect_exit(wait())
        assert (tmp_path / weights).read_bytes() == source.read_bytes()
    api.wait_for(lambda: api.names("pods") == [], 60.0)


def test_terminated_fetch_deletes_its_reader_pod(api: Api, tmp_path: Path, run: KubernetesRun) -> None:
    with start_orch(tmp_path, "fetch", run.id, "--from", str(tmp_path)) as process:
        api.wait_for(lambda: api.names("pods"), 60.0)
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process, 128 + signal.SIGTERM)
    assert api.names("pods") == []


# Programs in pods, over a real websocket.


MIB = 1 << 20


def test_large_output_is_read_in_small_parts(api: Api, tmp_path: Path) -> None:
    """Read slower than the API server sends, so that many frames are there at once."""
    content = os.urandom(16 * MIB)
    (tmp_path / "weights").write_bytes(content)
    digest = hashlib.sha256()
    with PodExec(make_client(api.url), "pod", "reader").open_program(("cat", str(tmp_path / "weights"))) as program:
        while part := program.output.read(MIB):
            digest.update(part)
    assert digest.digest() == hashlib.sha256(content).digest()


def test_output_before_a_connection_breaks_is_returned(api: Api) -> None:
    """Return it so that the next attempt can continue there."""
    api.state.break_execs = 1
    with PodExec(make_client(api.url), "pod", "reader").open_program(("cat", __file__)) as program:
        assert program.output.read() == Path(__file__).read_bytes()
        assert isinstance(program.failure(), ConnectionLost)


def test_stopped_run_is_marked_by_a_second_pod_if_the_first_does_not_respond(api: Api, tmp_path: Path) -> None:
    api.fail_requests("GET", "pods/lost/exec", 500, times=9)
    pods = [PodState(pod=name, node=name, container="pytorch", state="running") for name in ("lost", "living")]
    mark_volume(make_client(api.url), str(tmp_path), pods)
    assert (tmp_path / files.STOP).exists()
