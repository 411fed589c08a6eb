"""Read the volume of a run on Kubernetes through a small pod that is created for it."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.planning.plan import Object
from orchestrator.runs.fetch import Collected, FetchListener, Source
from orchestrator.targets.fetch import fetch_files
from orchestrator.targets.interface import FetchRequest
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere
from orchestrator.targets.kubernetes.exec import PodExec
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.pods import toleration
from orchestrator.targets.kubernetes.manifests.template import render
from orchestrator.targets.kubernetes.objects import delete_checked
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of
from orchestrator.targets.kubernetes.status import pod_state

START_SECONDS = 300.0
POLL_SECONDS = 0.5
READER = "reader"  # its container


def reader_pod(location: JobLocation, run_id: str) -> Object:
    """Return a pod through which files are fetched.

    Its name is new, because several commands may read the volume at the same time, and each deletes its pod.
    """
    values = {
        **asdict(location),
        "name": f"{location.job}-{secrets.token_hex(3)}{names.READER_SUFFIX}",
        "labels": names.labels(run_id),
        "pull_secrets": [{"name": name} for name in location.pull_secrets],
        "tolerations": [toleration(text) for text in location.tolerations],
    }
    return render("reader", values)[0]


@contextmanager
def reader(cluster: KubernetesClient, record: RunRecord) -> Iterator[PodExec]:
    """Create a pod that mounts the volume of a run, and delete it afterwards.

    Raises:
        ExecuteError: if the pod does not start.
    """
    location = location_of(record)
    if not location.image:
        raise ExecuteError(
            "No image is given for the pod that reads the volume.",
            hint="Set image in orch-k8s.toml. The image in a run's record is not used, because others can write it.",
        )
    pod = reader_pod(location, record.run_id)
    name = pod["metadata"]["name"]
    path = f"{cluster.path('Pod')}/{name}"
    with ending_at_sigterm():
        try:
            cluster.apply(pod)
            await_running(cluster, path)
            yield PodExec(cluster, name, READER)
        finally:
            delete(cluster, path, record.run_id)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an ordinary exit, so that the pod is deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def await_running(cluster: KubernetesClient, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        pod = cluster.get(path)
        state = pod_state(pod, cluster.events(f"involvedObject.name={pod['metadata']['name']}"))
        if state.state == "running":
            return
        has_ended = state.state in ("failed", "done") or "cannot be pulled" in state.reason
        if has_ended or time.monotonic() > deadline:
            raise ExecuteError(
                f"The pod that reads the volume did not start: {state.reason}.",
                hint=f"`kubectl describe pod {path.rpartition('/')[2]}` shows more while it exists.",
            )
        time.sleep(POLL_SECONDS)


def delete(cluster: KubernetesClient, path: str, run_id: str) -> None:
    with suppress(NotThere):
        delete_checked(cluster, cluster.get(path), run_id)


def fetch(
    cluster: KubernetesClient, record: RunRecord, folder: Path, request: FetchRequest, listener: FetchListener
) -> Collected:
    """Copy files of a run from its volume to this machine.

    Raises:
        RequestError: if a node is named, or a project as it was sent.
        ExecuteError: if files cannot be read.
    """
    if request.node:
        raise RequestError("--node has no meaning on Kubernetes: all pods share one volume.", hint="Leave --node out.")
    if request.project:
        raise RequestError(
            "--code: pods keep no copy of the project as it was sent.",
            hint=f"The run's copy, with the files that the run has changed: --from {record.run_dir}/project.",
        )
    with reader(cluster, record) as pod:
        return fetch_files([Source(name="the volume", remote=pod)], folder, request, listener)
