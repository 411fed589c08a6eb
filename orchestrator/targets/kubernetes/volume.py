"""The volume of a run on Kubernetes, read through a small pod that is made for it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.planning.manifest import Object
from orchestrator.runs.fetch import Collected, FetchListener, collect
from orchestrator.targets.interface import Wanted
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.api.exec import PodExec
from orchestrator.targets.kubernetes.manifests.helper_pods import reader_pod
from orchestrator.targets.kubernetes.objects import check_ours
from orchestrator.targets.kubernetes.run_record import location_of
from orchestrator.targets.kubernetes.status import pod_state

START_SECONDS = 300.0
END_SECONDS = 60.0
POLL_SECONDS = 0.5


@contextmanager
def reader(cluster: Kube, record: RunRecord) -> Iterator[PodExec]:
    """A place to read from; its pod is deleted afterwards. Raises ExecuteError."""
    location = location_of(record)
    if not location.image:
        raise ExecuteError(
            "No image is known for the pod that reads the volume.",
            hint="image in orch-k8s.toml; that in a run's record may be anybody's.",
        )
    made = reader_pod(location, record.run_id)
    name = made["metadata"]["name"]
    path = f"{cluster.core_path('Pod')}/{name}"
    forget_ended(cluster, path, record.run_id)
    with ending_at_sigterm():
        try:
            cluster.apply(made)
            await_running(cluster, path)
            yield PodExec(cluster, name)
        finally:
            delete(cluster, path, record.run_id)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """SIGTERM ends this program in order, so that its pod goes with it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there signals are dealt with
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def forget_ended(cluster: Kube, path: str, run_id: str) -> None:
    """A reader of before whose hour is over, or that is being deleted, would never run again: it
    is waited for until it is gone."""
    deadline = time.monotonic() + END_SECONDS
    try:
        while is_ending(cluster.get(path)):
            delete(cluster, path, run_id)
            if time.monotonic() > deadline:
                name = path.rpartition("/")[2]
                raise ExecuteError(
                    "The last pod that read the volume does not end.",
                    hint=f"`kubectl describe pod {name}` tells why; then try again.",
                )
            time.sleep(POLL_SECONDS)
    except NotThere:
        pass


def is_ending(pod: Object) -> bool:
    ended = pod_state(pod).state in ("done", "failed")
    return ended or bool(pod["metadata"].get("deletionTimestamp"))


def await_running(cluster: Kube, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        pod = cluster.get(path)
        found = pod_state(pod, cluster.events_of(pod["metadata"]["name"]))
        if found.state == "running":
            return
        ended = found.state in ("failed", "done") or "cannot be pulled" in found.words
        if ended or time.monotonic() > deadline:
            raise ExecuteError(
                f"The pod that reads the volume did not start: {found.words}.",
                hint="`orch k8s check` looks at the image, the claim and the room that there is.",
            )
        time.sleep(POLL_SECONDS)


def delete(cluster: Kube, path: str, run_id: str) -> None:
    try:
        pod = cluster.get(path)
        check_ours(pod, run_id)
        cluster.delete(path, pod["metadata"]["uid"])
    except NotThere:
        pass


def fetch(cluster: Kube, record: RunRecord, folder: Path, wanted: Wanted, listener: FetchListener) -> Collected:
    """Raises RequestError for another node than there is, ExecuteError for what fails."""
    if wanted.node:
        raise RequestError("--node is for nodes behind SSH: all pods share one volume.", hint="Leave --node out.")
    target = wanted.to or folder.absolute() / "output"
    with reader(cluster, record) as pod:
        return collect(pod, wanted.source, target, only=wanted.only, listener=listener)
