"""`orch` against an API server that speaks the real wire format."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib

from orchestrator.errors import ExecuteError
from orchestrator.runs import store
from orchestrator.targets.kubernetes.api import retry
from orchestrator.targets.kubernetes.watch import KubeWatch
from tests.conftest import orch_environment, run_orch_in
from tests.support.kube_api import Api, client_of
from tests.support.kube_operator import Operator, clean_failed, conditions, owner
from tests.support.ports import free_port

ROOT = Path(__file__).parent.parent.parent
Orch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        yield server


@pytest.fixture
def orch(api: Api, tmp_path: Path) -> Orch:
    """The real program with a kubeconfig for the test's server, its pods' folders here."""
    (tmp_path / "orch-k8s.toml").write_text(
        f'image = "registry.example/orch:current"\ncpu = "2"\nmount = "{tmp_path}/volume"\n'
        f'root = "{ROOT}"\npython = "{sys.executable}"\nfiles = "{tmp_path}/files"\n'
    )
    environment = {"KUBECONFIG": str(api.kubeconfig(tmp_path / "kubeconfig"))}
    return functools.partial(run_orch_in, tmp_path, env=environment)


def background(orch: Orch, *arguments: str) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Run it beside; the answer waits for its end."""
    found: list[subprocess.CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: found.append(orch(*arguments)))
    thread.start()

    def end() -> subprocess.CompletedProcess[str]:
        thread.join()
        return found[0]

    return end


def own_script(tmp_path: Path, text: str = "print('hello')\n") -> str:
    (tmp_path / "own.py").write_text(text)
    return "own.py"


ANY = ("--on", "k8s", "--nodes", "2", "--ppn", "1")
TRAIN = (*ANY, "--launcher", "pytorchjob")


def started(api: Api, orch: Orch, tmp_path: Path, *more: str) -> tuple[str, str]:
    """(run id, job) of a run that is left running."""
    done = orch("train", own_script(tmp_path), *TRAIN, "--detach", "--json", *more)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value.keys() >= {"schema", "kind", "run_id", "run_dir", "nodes"}
    (job,) = api.names("pytorchjobs")
    return value["run_id"], job


def test_a_run_stays_where_it_is_when_the_context_changes(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, _ = started(api, orch, tmp_path)
    record = json.loads((tmp_path / "runs" / run / "plan.json").read_text())
    assert record["target"] == "kubernetes"
    location = record["location"]
    assert (location["context"], location["namespace"]) == ("lab", "team")


def pod(api: Api, job: str, index: int, status: dict[str, Any]) -> str:
    """A worker's pod, as the operator makes it."""
    made = api.get("pytorchjobs", job)
    assert made is not None
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    name = f"{job}-worker-{index}"
    metadata = {**template["metadata"], "name": name, "ownerReferences": [owner(made)]}
    api.put("pods", {"metadata": metadata, "spec": template["spec"], "status": status})
    return name


def finish(api: Api, job: str, *kinds: str) -> None:
    made = api.get("pytorchjobs", job)
    assert made is not None
    api.put("pytorchjobs", {**made, "status": conditions("Created", "Running", *kinds)})


def event(kind: str, rank: int, **fields: Any) -> str:
    return json.dumps({"event": kind, "rank": rank, "time": 1.0 + rank, **fields})


RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


def test_a_dry_run_asks_no_cluster_and_prints_what_kubectl_takes(api: Api, orch: Orch, tmp_path: Path) -> None:
    done = orch("train", "bert-qa", *TRAIN, "--dry-run", "-o", "yaml")
    assert done.returncode == 0, done.stderr
    assert api.state.requests == []
    value = json.loads(orch("train", "bert-qa", *TRAIN, "--dry-run", "--json").stdout)
    assert value["kind"] == "plan"
    assert [one["kind"] for one in value["objects"]] == ["ConfigMap", "PyTorchJob"]
    both = orch("train", "bert-qa", "--dry-run", "-o", "yaml")
    assert both.returncode == 2


@pytest.mark.parametrize("launcher", ["pytorchjob", "trainjob", "job"])
def test_a_run_from_beginning_to_end(api: Api, orch: Orch, tmp_path: Path, launcher: str) -> None:
    """Real torchrun, two pods as processes of this machine, gloo between them."""
    text = (
        "import sys, torch, torch.distributed as dist\n"
        "value = torch.ones(1)\ndist.all_reduce(value)\nprint('sum', value.item(), sys.argv[1:])\n"
    )
    operator = Operator(api)
    end = background(
        orch,
        "train",
        own_script(tmp_path, text),
        *TRAIN,
        "--launcher",
        launcher,
        "--backend",
        "gloo",
        "--k8s",
        "ttl=0",
        "--",
        "$(HOME)",
        "two words",
    )
    operator.run(f"{launcher}s", free_port())
    done = end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 2 ranks joined on gloo" in done.stderr
    assert done.stderr.count("sum 2.0 ['$(HOME)', 'two words']\n") == 1, "rank 0's"
    assert operator.starts == 1
    shown = orch("logs")
    assert shown.stdout.count("sum 2.0 ['$(HOME)', 'two words']") == 2
    listed = json.loads(orch("runs", "--json").stdout)["runs"]
    assert [one["state"] for one in listed] == ["done"]
    there = json.loads(orch("runs", "--inventory", "k8s", "--json").stdout)["runs"]
    assert [(one["id"], one["state"]) for one in there] == [(listed[0]["id"], "done")]
    assert orch("report").returncode == 0
    run = tmp_path / "runs" / listed[0]["id"]
    assert list(run.glob("ranks/rank-*.metrics.jsonl"))


def test_pods_that_wait_say_why(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu.",
    }
    pod(api, job, 0, {"phase": "Pending", "conditions": [unschedulable]})
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod(api, job, 1, {"phase": "Pending", "containerStatuses": [{"state": waiting}]})
    api.await_(lambda: events_of(tmp_path, run, "Insufficient") and events_of(tmp_path, run, "pulled"))
    finish(api, job, "Failed")
    done = end()
    assert done.returncode == 1
    assert "worker-0: waits for a node: 0/3 nodes are available: 3 Insufficient cpu." in done.stderr
    assert "worker-1: its image registry.example/orch:current cannot be pulled" in done.stderr


@pytest.mark.parametrize(("reason", "of"), [("FailedCreatePod", ""), ("FailedCreate", "-node-0")])
def test_pods_that_are_not_admitted_say_why(api: Api, orch: Orch, tmp_path: Path, reason: str, of: str) -> None:
    run, job = started(api, orch, tmp_path)
    quota = 'pods "x" is forbidden: exceeded quota: small, requested: requests.cpu=2'
    for name, message in ((f"{job}{of}", quota), ("orch-another", "of another")):
        api.put(
            "events",
            {"metadata": {"name": f"{name}.1"}, "reason": reason, "involvedObject": {"name": name}, "message": message},
        )
    end = background(orch, "attach", run)
    api.await_(lambda: events_of(tmp_path, run, "exceeded quota"))
    finish(api, job, "Failed")
    assert f"its pods are not admitted: {quota}" in end().stderr


def test_a_refusal_is_reported_once_for_all_random_names_of_pods(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    folder = tmp_path / "runs" / run
    watch = KubeWatch(store.load(folder).record, folder, print, client_of(api.url))
    for number, words in enumerate(("cpu=2", "cpu=2", "cpu=4")):
        quota = f'pods "{job}-x{number}" is forbidden: exceeded quota: small, requested: {words}'
        api.put(
            "events",
            {
                "metadata": {"name": f"{job}.{number}"},
                "reason": "FailedCreate",
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
                "involvedObject": {"name": job},
                "message": quota,
            },
        )
        assert watch.poll_job() is None
    assert watch.follower.items.qsize() == 2


def test_pods_of_which_some_are_not_admitted_say_why(api: Api, orch: Orch, tmp_path: Path) -> None:
    """The others wait for them."""
    run, job = started(api, orch, tmp_path)
    pod(api, job, 0, {"phase": "Pending"})
    quota = 'pods "x" is forbidden: exceeded quota: small, requested: requests.cpu=2'
    api.put(
        "events",
        {
            "metadata": {"name": f"{job}.1"},
            "reason": "FailedCreatePod",
            "involvedObject": {"name": job},
            "message": quota,
        },
    )
    end = background(orch, "attach", run)
    api.await_(lambda: events_of(tmp_path, run, "exceeded quota"))
    finish(api, job, "Failed")
    assert f"some of its pods are not admitted: {quota}" in end().stderr


def events_of(tmp_path: Path, run: str, words: str) -> bool:
    path = tmp_path / "runs" / run / "events.jsonl"
    return path.exists() and words in path.read_text()


def test_the_first_rank_that_failed_is_named_across_dropped_streams(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    names = [pod(api, job, index, RUNNING) for index in (0, 1)]
    api.state.drop_streams = 4
    for rank, name in enumerate(names):
        api.say(name, event("started", rank, node=f"worker-{rank}", pid=1, wrapper=2))
        api.say(name, *(f"[{rank}] line {n}" for n in range(50)))
    api.await_(lambda: events_of(tmp_path, run, "started"))
    api.say(names[0], event("exception", 0, text="Connection closed by peer"))
    api.say(names[0], event("exit", 0, node="worker-0", code=1, signal=None, stopped=False), end=True)
    api.say(names[1], event("exception", 1, text="ValueError: enough"))
    api.say(names[1], event("exit", 1, node="worker-1", code=1, signal=None, stopped=False), end=True)
    failed = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    for index in (0, 1):
        pod(api, job, index, failed)
    finish(api, job, "Failed")
    done = end()
    assert done.returncode == 1
    assert "failed: rank 1 on worker-1 exited with code 1" in done.stdout
    assert "ValueError: enough" in done.stdout
    for rank in (0, 1):
        lines = (tmp_path / "runs" / run / "ranks" / f"rank-{rank}.log").read_text().splitlines()
        assert lines == [f"line {n}" for n in range(50)], "each line once, in order"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            },
            "memory ran out (killed because of its memory use (OOMKilled): the pod's limit is 8Gi)",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            "worker-0: evicted: The node was low on memory.",
        ),
        (
            {
                "phase": "Failed",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "message": "Preempted by another pod"}],
            },
            "worker-0: ended by the cluster: Preempted by another pod",
        ),
    ],
)
def test_what_the_cluster_did_to_a_pod_is_said(
    api: Api, orch: Orch, tmp_path: Path, status: dict[str, Any], words: str
) -> None:
    run, job = started(api, orch, tmp_path)
    name = pod(api, job, 0, RUNNING)
    api.say(name, event("started", 0, node="worker-0", pid=1, wrapper=2), end=True)
    pod(api, job, 0, status)
    finish(api, job, "Failed")
    done = orch("attach", run)
    assert done.returncode == 1
    assert words in done.stdout


def test_a_busy_api_and_forgotten_watches_are_lived_through(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.fail("PATCH", "pytorchjobs", 429, 1, Retry_After="0")
    api.fail("PATCH", "configmaps", 503, 2)
    run, job = started(api, orch, tmp_path)
    api.state.forgotten = 10**9
    end = background(orch, "attach", run)
    api.await_(lambda: sum("watch=true" in path for _, path in api.state.requests) >= 2)
    api.state.forgotten = 0
    api.fail("GET", "pytorchjobs", 500, 3)
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] hello", end=True)
    api.await_(lambda: (tmp_path / "runs" / run / "ranks" / "rank-0.log").exists())
    pod(api, job, 0, {"phase": "Succeeded"})
    finish(api, job, "Succeeded")
    done = end()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_token_that_expires_is_said_and_the_run_is_left_alone(
    api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, job = started(api, orch, tmp_path)
    folder = tmp_path / "runs" / run
    monkeypatch.setattr(retry, "REFUSED_SECONDS", 1.0)
    watch = KubeWatch(store.load(folder).record, folder, print, client_of(api.url))
    api.fail("GET", "pytorchjobs", 401, 9999)
    with pytest.raises(ExecuteError, match="Authentication with the API") as caught:
        list(watch.events())
    assert "The run continues" in caught.value.message
    assert "Log in again" in caught.value.hint
    assert f"orch attach {run}" in caught.value.hint
    assert api.names("pytorchjobs") == [job]
    watch.leave()


def test_an_api_server_that_starts_again_is_lived_through(api: Api, orch: Orch, tmp_path: Path) -> None:
    """For a moment it knows no roles: whoever asks is refused."""
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    api.await_(lambda: any("/log" in path for _, path in api.state.requests))
    for what in ("/pods\\?", "/log", "pytorchjobs"):
        api.fail("GET", what, 403, 3)
    api.state.drop_streams = 2
    api.say(name, "[0] hello")
    pod(api, job, 0, {**RUNNING, "qosClass": "Guaranteed"})
    api.await_(lambda: not any(one.times for one in api.state.failures), 60.0)
    api.say(name, "[0] goodbye", end=True)
    pod(api, job, 0, {"phase": "Succeeded"})
    finish(api, job, "Succeeded")
    done = end()
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / "runs" / run / "ranks" / "rank-0.log"
    assert log.read_text() == "hello\ngoodbye\n"


FAILED = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
ENDED = {"node": "worker-0", "code": 1, "signal": None, "stopped": False}


def test_a_run_that_failed_while_nobody_watched_keeps_its_traceback(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    names = [pod(api, job, index, RUNNING) for index in (0, 1)]
    api.say(names[0], "[0] ValueError: enough", event("exit", 0, **ENDED), end=True)
    pod(api, job, 0, FAILED)
    clean_failed(api, api.get("pytorchjobs", job) or {})
    finish(api, job, "Failed")
    assert api.names("pods") == names[:1]  # its peer, which ran, is gone
    done = logs_with_volume(api, orch, tmp_path, run, "ValueError: enough\n", "Connection closed\n")
    said = "[0 worker-0] ValueError: enough\n[1 worker-1] Connection closed\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def logs_with_volume(api: Api, orch: Orch, tmp_path: Path, run: str, *logs: str) -> subprocess.CompletedProcess[str]:
    """`orch logs`, where these logs of ranks are on the run's volume."""
    ranks = tmp_path / "volume" / "runs" / run / "ranks"
    ranks.mkdir(parents=True)
    for rank, text in enumerate(logs):
        (ranks / f"rank-{rank}.log").write_text(text)
    end = background(orch, "logs", run)
    (name,) = api.await_(lambda: [one for one in api.names("pods") if "-reader" in one], 60.0)
    api.put("pods", {**(api.get("pods", name) or {}), "status": RUNNING})
    return end()


def test_logs_of_pods_that_are_gone_come_from_the_volume(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path, "--max-restarts", "1")
    names = [pod(api, job, index, RUNNING) for index in (0, 1)]
    pod(api, job, 0, FAILED)
    clean_failed(api, api.get("pytorchjobs", job) or {})  # the operator's limit is used up
    finish(api, job, "Failed")
    assert set(names).isdisjoint(api.names("pods"))
    done = logs_with_volume(api, orch, tmp_path, run, "ValueError: enough\n")
    assert (done.returncode, done.stdout) == (0, "[0 worker-0] ValueError: enough\n"), done.stderr
    assert api.names("pods") == []
    again = orch("logs", run)
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_a_failed_run_without_a_word_is_no_success(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    for index in (0, 1):
        pod(api, job, index, FAILED)
    finish(api, job, "Failed")
    done = orch("logs", run)
    assert done.returncode == 1
    assert "its ranks have printed nothing" in done.stderr
    assert "exited with code 1" in done.stderr


def test_what_is_not_allowed_is_said_and_nothing_is_left(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.state.denied.add(("patch", "pytorchjobs"))
    done = orch("train", own_script(tmp_path), *TRAIN)
    assert done.returncode == 1
    assert 'User "me" cannot patch resource "pytorchjobs"' in done.stderr
    assert "orch k8s check" in done.stderr
    assert api.names("configmaps") == []
    assert not list((tmp_path / "runs").glob("*"))


def test_a_missing_operator_is_named(api: Api, orch: Orch, tmp_path: Path) -> None:
    del api.state.groups["kubeflow.org"]
    done = orch("train", own_script(tmp_path), *TRAIN)
    assert done.returncode == 1
    assert "The cluster has no PyTorchJob kubeflow.org/v1" in done.stderr
    assert "orch k8s check" in done.stderr
    assert api.names("configmaps") == []


def test_a_job_that_is_gone(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    api.remove("pytorchjobs", job)
    done = orch("attach", run, warm=False)
    assert done.returncode == 1
    assert f"the job {job} is gone" in done.stdout


def test_a_lost_node_is_reported_while_its_pod_is_still_running(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    pod(api, job, 0, RUNNING)
    conditions_of_lost_pod = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    pod(api, job, 1, {**RUNNING, "conditions": conditions_of_lost_pod})
    api.await_(lambda: events_of(tmp_path, run, "does not respond"))
    finish(api, job, "Failed")
    done = end()
    assert done.returncode == 1
    assert "worker-1: its node does not respond" in done.stderr
    assert "worker-1: its node does not respond" in done.stdout


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "worker-0: its image registry.example/orch:current cannot be pulled",
            id="image",
        ),
        pytest.param(
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "message": "pod has unbound immediate PersistentVolumeClaims",
                    }
                ]
            },
            "worker-0: waits for a node: pod has unbound immediate PersistentVolumeClaims",
            id="claim",
        ),
        pytest.param(None, "suspended", id="quota"),
    ],
)
def test_a_run_that_waits_longer_than_its_limit_is_ended(
    api: Api, orch: Orch, tmp_path: Path, status: dict[str, Any] | None, reason: str
) -> None:
    end = background(orch, "train", own_script(tmp_path), *TRAIN, "--backend", "gloo", "--wait-limit", "5")
    (job,) = api.await_(lambda: api.names("pytorchjobs"), 60.0)
    if status is None:
        finish(api, job, "Suspended")
    else:
        pod(api, job, 0, {"phase": "Pending", **status})
    done = end()
    assert done.returncode == 1, done.stderr
    assert f"have not started within 5 s (--wait-limit): {reason}" in done.stdout
    assert api.names("pytorchjobs") == api.names("configmaps") == []
    api.await_(lambda: not api.names("pods"))


def test_a_run_whose_ranks_have_started_has_no_wait_limit(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path, "--wait-limit", "1")
    made = api.get("pytorchjobs", job) or {}
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    api.put("pytorchjobs", made)
    folder = tmp_path / "runs" / run
    (folder / "events.jsonl").write_text(event("started", 0, node="worker-0", pid=1) + "\n")
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] hello", end=True)
    looks = f"/pytorchjobs/{job}"
    api.await_(lambda: sum(path.endswith(looks) for _, path in api.state.requests) > 3)
    finish(api, job, "Succeeded")
    assert end().returncode == 0


def test_a_job_that_somebody_deletes_is_the_reason_and_not_its_pods(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    api.say(name, event("started", 0, node="worker-0", pid=1, wrapper=2))
    api.await_(lambda: events_of(tmp_path, run, "started"))
    deleted = api.get("pods", name) or {}
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.put("pods", deleted)
    api.await_(lambda: events_of(tmp_path, run, "is being deleted"))
    api.say(name, end=True)
    api.put("pods", {**deleted, "status": FAILED})
    api.remove("pytorchjobs", job)
    done = end()
    assert done.returncode == 1
    assert f"the job {job} is gone" in done.stdout
    assert "pod was deleted" not in done.stdout


def test_stop_deletes_what_is_ours_and_keeps_what_was_said(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    other = api.put("configmaps", {"metadata": {"name": "other", "labels": {"orch/run": run}}})
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] last words")
    done = orch("stop", run, warm=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-0" in done.stdout
    assert api.names("pytorchjobs") == api.names("pods") == []
    assert api.names("configmaps") == [other["metadata"]["name"]]
    assert (tmp_path / "runs" / run / "ranks" / "rank-0.log").read_text() == "last words\n"
    assert json.loads(orch("runs", "show", run, "--json").stdout)["state"] == "stopped"
    assert orch("runs", "show", run).stdout.count("state: ") == 1


def test_a_run_that_is_stopped_while_it_is_watched_was_stopped(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] last words")
    api.await_((tmp_path / "runs" / run / "ranks" / "rank-0.log").exists)
    assert orch("stop", run).returncode == 0
    watched = end()
    assert watched.returncode == 130, watched.stdout + watched.stderr
    assert json.loads(orch("runs", "show", run, "--json").stdout)["state"] == "stopped"
    events = (tmp_path / "runs" / run / "events.jsonl").read_text()
    assert events.count('"finished"') == 1


def test_several_commands_that_watch_a_run_write_each_line_once(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    ends = [background(orch, "attach", run) for _ in range(2)]
    name = pod(api, job, 0, RUNNING)
    said = [f"[0] line {number}" for number in range(4)]
    for line in said:
        api.say(name, line)
        assert orch("logs", run).returncode == 0
    api.say(name, event("joined", 0, node="worker-0", backend="gloo"), end=True)
    pod(api, job, 0, {"phase": "Succeeded"})
    finish(api, job, "Succeeded")
    for end in ends:
        done = end()
        assert done.returncode == 0, done.stdout + done.stderr
    kept = (tmp_path / "runs" / run / "ranks" / "rank-0.log").read_text()
    assert kept.splitlines() == [line.removeprefix("[0] ") for line in said]
    events = (tmp_path / "runs" / run / "events.jsonl").read_text()
    assert events.count('"joined"') == 1


def test_a_pod_that_follows_one_of_its_name_is_read_once(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    log = tmp_path / "runs" / run / "ranks" / "rank-0.log"
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] before", end=True)
    api.await_(log.exists)
    api.remove("pods", name)
    del api.state.logs[name]
    asked = len(api.state.requests)
    api.say(name, "[0] after")
    pod(api, job, 0, RUNNING)
    api.await_(lambda: "after" in log.read_text())
    with pytest.raises(AssertionError, match="waited in vain"):  # nobody else asks for its log
        api.await_(lambda: sum("/log" in path for _, path in api.state.requests[asked:]) > 1, 3.0)
    api.say(name, end=True)
    pod(api, job, 0, {"phase": "Succeeded"})
    finish(api, job, "Succeeded")
    done = end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert log.read_text() == "before\nafter\n"


def test_lines_are_followed_while_another_command_watches_the_run(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    # Running, and without a log yet.
    api.await_(lambda: any("/log" in path for _, path in api.state.requests))
    environment = orch_environment(tmp_path) | {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "logs", run, "--follow"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        threading.Timer(60, process.kill).start()
        for number in range(3):  # and no event in between
            api.say(name, f"[0] line {number}", end=number == 2)
            assert process.stdout.readline() == f"[0 worker-0] line {number}\n"
        pod(api, job, 0, {"phase": "Succeeded"})
        finish(api, job, "Succeeded")
        assert end().returncode == 0
        assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0


@pytest.mark.parametrize(("status", "words"), [(503, "fails"), (403, "The cluster refuses it")])
def test_a_log_that_cannot_be_read_is_said_to_be_missing(
    api: Api, orch: Orch, tmp_path: Path, status: int, words: str
) -> None:
    run, job = started(api, orch, tmp_path)
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] hello")
    assert orch("logs", run).stdout == "[0 worker-0] hello\n"
    api.fail("GET", f"{name}/log", status, 99)
    done = orch("logs", run)
    assert done.returncode == 1
    assert done.stdout == "[0 worker-0] hello\n"
    assert "Lines may be missing: worker-0: " in done.stderr
    assert words in done.stderr
    stopped = orch("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    assert "its log could not be copied" in stopped.stdout
    assert api.names("pytorchjobs") == []


def test_stop_leaves_a_job_that_is_not_ours(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    made = api.get("pytorchjobs", job)
    assert made is not None
    made["metadata"]["labels"]["orch/run"] = "another"
    api.put("pytorchjobs", made)
    done = orch("stop", run)
    assert done.returncode == 1
    assert "does not have the labels of run" in done.stderr
    assert api.names("pytorchjobs") == [job]
    assert not (tmp_path / "runs" / run / "stop").exists(), "it goes on, and may fail by itself"


@pytest.mark.parametrize("rights", [True, False])
def test_of_a_job_that_could_not_be_made_nothing_is_left(api: Api, orch: Orch, tmp_path: Path, rights: bool) -> None:
    del api.state.groups["trainer.kubeflow.org"]
    if not rights:
        for verb in ("patch", "get", "list"):
            api.state.denied |= {(verb, "trainjobs"), (verb, "trainingruntimes")}
    words = (*ANY, "--launcher", "trainjob", "--detach", "--backend", "gloo")
    done = orch("train", own_script(tmp_path), *words)
    assert done.returncode == 1
    assert ("its CRD is missing" if rights else "Not allowed: trainingruntimes") in done.stderr
    assert api.names("configmaps") == []


def test_ctrl_c_stops_the_run(api: Api, orch: Orch, tmp_path: Path) -> None:
    environment = orch_environment(tmp_path) | {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "train", own_script(tmp_path), *TRAIN],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        api.await_(lambda: any("watch=true" in path for _, path in api.state.requests))
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, out + err
    assert api.names("pytorchjobs") == api.names("configmaps") == []


def test_another_controller_finds_the_run(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    name = pod(api, job, 0, RUNNING)
    api.say(name, "[0] hello")
    done = orch("logs", run, "--inventory", "k8s", "--runs-dir", "elsewhere")
    assert done.stdout == "[0 worker-0] hello\n", done.stderr
    unknown = orch("logs", "nope", "--inventory", "k8s")
    assert unknown.returncode == 2


def test_what_kubectl_has_made_becomes_the_jobs_own(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    (name,) = api.names("configmaps")
    alone = api.get("configmaps", name) or {}
    whole = dict(alone["data"])
    del alone["metadata"]["ownerReferences"]
    api.remove("configmaps", name)
    api.put("configmaps", alone)
    assert orch("logs", run, "--inventory", "k8s", "--runs-dir", "elsewhere").returncode == 0
    found = api.get("configmaps", name) or {}
    made = api.get("pytorchjobs", job) or {}
    own = {name: value for name, value in owner(made).items() if name != "controller"}
    assert found["metadata"]["ownerReferences"] == [own]
    assert found["data"] == whole


def test_a_later_controller_tells_the_times_of_the_cluster(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    made = api.get("pytorchjobs", job) or {}
    made["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
    ended = [{**one, "lastTransitionTime": "1970-01-01T00:01:00Z"} for one in conditions("Succeeded")["conditions"]]
    name = pod(api, job, 0, RUNNING)
    api.say(name, event("started", 1, node="worker-0"), end=True)
    api.put("pytorchjobs", {**made, "status": {"conditions": ended}})
    there = ("--inventory", "k8s", "--runs-dir", "elsewhere")
    assert orch("attach", run, *there).returncode == 0
    lines = (tmp_path / "elsewhere" / run / "events.jsonl").read_text().splitlines()
    times = {one["event"]: one["time"] for one in map(json.loads, lines)}
    assert times == {"launched": 1.0, "started": 2.0, "finished": 60.0}
    value = json.loads((tmp_path / "elsewhere" / run / "outcome.json").read_text())
    assert (value["started"], value["ended"]) == (1.0, 60.0)


def test_a_stop_that_is_watched_loses_no_pod(api: Api, orch: Orch, tmp_path: Path) -> None:
    """The supervisor in an MPIJob's launcher sees its workers go."""
    run, job = started(api, orch, tmp_path)
    end = background(orch, "attach", run)
    name = pod(api, job, 0, RUNNING)
    lost = {"state": "failed", "problem": "worker-0 was lost", "nodes": {"worker-0": {"lost": "x"}}}
    (tmp_path / "runs" / run / "stop").touch()  # as `orch stop` does before anything is deleted
    api.say(
        name,
        event("lost", -1, text="worker-0 was lost: no answer", nodes=["worker-0"]),
        event("outcome", -1, outcome=lost),
        end=True,
    )
    finish(api, job, "Failed")
    done = end()
    assert done.returncode == 130, done.stdout + done.stderr
    assert "lost" not in done.stdout + done.stderr
    assert "orch stop tries again" not in orch("runs", "show", run).stdout


def test_outputs_come_through_a_pod_that_is_removed_again(api: Api, orch: Orch, tmp_path: Path) -> None:
    done = orch("train", "bert-qa", *TRAIN, "--detach", "--json")
    run = json.loads(done.stdout)["run_id"]
    output = tmp_path / "volume" / "runs" / run / "output"
    (output / "model").mkdir(parents=True)
    (output / "model" / "weights").write_bytes(os.urandom(200_000))
    api.state.restricted = True
    end = background(orch, "fetch", run)
    (name,) = api.await_(lambda: api.names("pods"))
    made = api.get("pods", name)
    assert made is not None
    assert made["spec"]["containers"][0]["volumeMounts"][0]["readOnly"]
    api.put("pods", {**made, "status": RUNNING})
    fetched = end()
    assert fetched.returncode == 0, fetched.stderr
    here = tmp_path / "runs" / run / "output" / "model" / "weights"
    assert here.read_bytes() == (output / "model" / "weights").read_bytes()
    assert api.names("pods") == []


def test_a_reader_that_is_still_ending_is_waited_for(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, _ = started(api, orch, tmp_path)
    folder = tmp_path / "volume" / "runs" / run
    folder.mkdir(parents=True)
    (folder / "model").write_text("weights")
    api.state.grace = 15.0
    uids = []
    for _ in range(2):
        end = background(orch, "fetch", run, "--from", str(folder))
        made = api.await_(lambda: new_pod(api, uids), 60.0)
        uids.append(made["metadata"]["uid"])
        api.put("pods", {**made, "status": RUNNING})
        fetched = end()
        assert fetched.returncode == 0, fetched.stderr


def new_pod(api: Api, known: list[str]) -> dict[str, Any] | None:
    pods = (api.get("pods", name) or {} for name in api.names("pods"))
    return next((one for one in pods if one and one["metadata"]["uid"] not in known), None)


def test_a_fetch_that_is_terminated_takes_its_pod_away(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, _ = started(api, orch, tmp_path)
    environment = orch_environment(tmp_path) | {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "fetch", run, "--from", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        api.await_(lambda: api.names("pods"), 60.0)
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert api.names("pods") == []


def test_without_a_kubeconfig_there_is_a_hint(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").unlink()
    done = orch("train", own_script(tmp_path), *TRAIN)
    assert done.returncode == 2
    assert "No cluster is configured" in done.stderr
    wrong = orch("train", own_script(tmp_path), *TRAIN, "--k8s", "context=nope")
    assert wrong.returncode == 2


def test_without_the_package_there_is_a_hint(orch: Orch, tmp_path: Path) -> None:
    script = "import sys; sys.modules['kubernetes'] = None\nfrom orchestrator.cli.main import main\n"
    arguments = ["train", own_script(tmp_path), *TRAIN]
    done = subprocess.run(
        [sys.executable, "-c", f"{script}sys.argv[1:] = {arguments!r}\nmain()"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    asked = done.stderr.partition("pip install '")[2].partition("'")[0]
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert asked
    assert asked in tomllib.loads(project)["project"]["optional-dependencies"]["k8s"]


def test_settings_are_checked(orch: Orch, tmp_path: Path) -> None:
    for pairs, words in (
        (("imagee=x",), "Did you mean 'image'?"),
        (("uid=x",), "expected a number"),
        (("cpu=lots",), "not a quantity"),
        (("node_selector=x",), "--k8s node_selector.NAME=VALUE"),
    ):
        flags = [word for pair in pairs for word in ("--k8s", pair)]
        done = orch("train", own_script(tmp_path), *TRAIN, *flags)
        assert done.returncode == 2
        assert words in done.stderr
    (tmp_path / "orch-k8s.toml").write_text('imagee = "x"\n')
    done = orch("train", own_script(tmp_path), *TRAIN)
    assert "orch-k8s.toml, line 1: imagee: unknown key" in done.stderr
