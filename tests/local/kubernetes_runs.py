"""Runs on the test API server, in which the test itself plays operator and kubelet."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.local.runs import Orch, Process, expect_exit, write_script
from tests.support.kubernetes_api import Api
from tests.support.kubernetes_operator import make_conditions, owner_reference

TWO_PODS = ("--on", "k8s", "--nodes", "2", "--ppn", "1")
PYTORCHJOB = (*TWO_PODS, "--launcher", "pytorchjob")
OLD_TIMESTAMP = "2026-01-02T03:04:05Z"


RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
FAILED = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}


def in_background(orch: Orch, *arguments: str) -> Callable[[], Process]:
    """Start orch in a thread; the returned function waits for its end."""
    results: list[Process] = []
    thread = threading.Thread(target=lambda: results.append(orch(*arguments)))
    thread.start()

    def wait() -> Process:
        thread.join()
        return results[0]

    return wait


def get_object(api: Api, plural: str, name: str = "") -> dict[str, Any]:
    """Return an existing object of the server; without a name the only one of its kind."""
    if not name:
        (name,) = api.names(plural)
    value = api.get(plural, name)
    assert value is not None, f"there is no {name} in {plural}"
    return dict(value)


def await_new_pod(api: Api, known_uids: list[str], suffix: str = "") -> dict[str, Any]:
    """Wait for a pod that is not known yet, add it to the known ones, and return it."""

    def find() -> dict[str, Any] | None:
        pods = (api.get("pods", name) or {} for name in api.names("pods") if name.endswith(suffix))
        return next((pod for pod in pods if pod and pod["metadata"]["uid"] not in known_uids), None)

    pod = dict(api.wait_for(find, 60.0))
    known_uids.append(pod["metadata"]["uid"])
    return pod


def set_pod_status(api: Api, status: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    """Wait for a pod that orch makes, give it this status, and return it."""
    pod = await_new_pod(api, [], suffix)
    api.put("pods", {**pod, "status": status})
    return pod


def check_findings(process: Process) -> dict[str, dict[str, Any]]:
    """Return the findings of `orch k8s check --json` by topic, after checking their form."""
    value = json.loads(process.stdout)
    assert (value["schema"], value["kind"]) == (1, "k8s check")
    assert all(finding.keys() == {"topic", "state", "words", "hint"} for finding in value["findings"])
    assert value["ready"] is (process.returncode == 0)
    return {finding["topic"]: finding for finding in value["findings"]}


def add_event(api: Api, name: str, reason: str, message: str, **fields: Any) -> None:
    """Add a Kubernetes event about the object with this name, which may be a pod that exists."""
    pod = api.get("pods", name) or {"metadata": {"uid": ""}}
    event = {"metadata": {"name": f"{name}.{len(api.names('events'))}"}, "reason": reason, "message": message}
    api.put("events", {**event, "involvedObject": {"name": name, "uid": pod["metadata"]["uid"]}, **fields})


def rank_event(kind: str, rank: int, **fields: Any) -> str:
    """Return an event of a rank as a line of its pod's log."""
    return json.dumps({"event": kind, "rank": rank, "time": 1.0 + rank, **fields})


def rank_started(rank: int = 0) -> str:
    return rank_event("started", rank, node=f"worker-{rank}", pid=1, wrapper=2)


def rank_exited(rank: int = 0) -> str:
    return rank_event("exit", rank, node=f"worker-{rank}", code=1, signal=None, stopped=False)


@dataclass(frozen=True)
class KubernetesRun:
    """A detached run of a PyTorchJob.

    Attributes:
        folder: of the run on this machine.
        job: name of its PyTorchJob.
    """

    api: Api
    orch: Orch
    folder: Path
    job: str

    @property
    def id(self) -> str:
        return self.folder.name

    def attach(self) -> Callable[[], Process]:
        """Start `orch attach`; the returned function waits for its end."""
        return in_background(self.orch, "attach", self.id)

    def set_pod(self, index: int, status: dict[str, Any]) -> str:
        """Create or change a worker's pod as the operator does, and return its name."""
        job = get_object(self.api, "pytorchjobs", self.job)
        template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        name = f"{self.job}-worker-{index}"
        metadata = {**template["metadata"], "name": name, "ownerReferences": [owner_reference(job)]}
        self.api.put("pods", {"metadata": metadata, "spec": template["spec"], "status": status})
        return name

    def finish(self, *kinds: str) -> None:
        """Give the job these conditions, after those of a job that runs."""
        self.update_job(status=make_conditions("Created", "Running", *kinds))

    def update_job(self, **changes: Any) -> None:
        """Replace these fields of the job."""
        self.api.put("pytorchjobs", {**get_object(self.api, "pytorchjobs", self.job), **changes})

    def succeed(self) -> None:
        """Let the pod of worker 0 and the job succeed."""
        self.set_pod(0, {"phase": "Succeeded"})
        self.finish("Succeeded")

    def await_request(self, text: str, count: int = 1) -> None:
        """Wait until this many requests with this text in their path have been received."""
        self.api.wait_for(lambda: sum(text in path for _, path in self.api.state.requests) >= count)

    def log(self, rank: int = 0) -> Path:
        return self.folder / "ranks" / f"rank-{rank}.log"

    def state(self) -> str:
        """Return the state that `orch runs show` reports."""
        return str(json.loads(self.orch("runs", "show", self.id, "--json").stdout)["state"])


def start_run(api: Api, orch: Orch, folder: Path, *options: str) -> KubernetesRun:
    """Start a detached run of a script on two pods."""
    process = expect_exit(orch("train", write_script(folder), *PYTORCHJOB, "--detach", "--json", *options))
    value = json.loads(process.stdout)
    assert value.keys() >= {"schema", "kind", "run_id", "run_dir", "nodes"}
    (job,) = api.names("pytorchjobs")
    return KubernetesRun(api, orch, folder / "runs" / value["run_id"], job)
