"""The objects of a run in the cluster: which are its own, and how they are deleted."""

from __future__ import annotations

import time

from orchestrator.errors import ExecuteError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.location import JobLocation
from orchestrator.targets.kubernetes.manifests import names

GONE_SECONDS = 150.0  # a pod has 120 s to end
POLL_SECONDS = 0.5
STOPPED = "stop"  # a file of the run's folder: `orch stop` has deleted the job


def pods_of(cluster: Kube, run_id: str) -> list[Object]:
    return cluster.objects("Pod", names.selector(run_id))


def delete_objects(cluster: Kube, at: JobLocation, run_id: str) -> None:
    """The job first, then what has its run id: pods that read, the runtime, the files.

    Raises ExecuteError where an object of the job's name is not the run's.
    """
    path = f"/apis/{at.group}/{at.version}/namespaces/{cluster.namespace}/{at.plural}"
    try:
        job = cluster.job(at.group, at.version, at.plural, at.job)
        check_ours(job, run_id)
        cluster.delete(f"{path}/{at.job}", job["metadata"]["uid"])
    except NotThere:
        pass
    selector = names.selector(run_id)
    if at.launcher == "trainjob":
        runtimes = "trainingruntimes"
        for one in cluster.list_custom(at.group, at.version, runtimes, selector):
            base = path[: -len(at.plural)] + runtimes
            remove_ours(cluster, base, one, run_id)
    for kind in ("Pod", "ConfigMap", *(["Service"] if at.launcher == "job" else [])):
        for one in cluster.objects(kind, selector):
            if kind == "Pod" and one["metadata"].get("ownerReferences"):
                continue  # the job's own end with it, in their order
            remove_ours(cluster, cluster.core_path(kind), one, run_id)


def remove_ours(cluster: Kube, base: str, one: Object, run_id: str) -> None:
    check_ours(one, run_id)
    cluster.delete(f"{base}/{one['metadata']['name']}", one["metadata"]["uid"])


def check_ours(one: Object, run_id: str) -> None:
    """Raises ExecuteError for an object without our label and this run's id."""
    labels = one["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in names.labels(run_id).items()):
        raise ExecuteError(
            f"{one['metadata']['name']} does not have the labels of run {run_id}; it is left alone."
        )


def await_gone(cluster: Kube, run_id: str) -> list[str]:
    """Pods that are still there after a while."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        left = [pod["metadata"]["name"] for pod in pods_of(cluster, run_id)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_SECONDS)
