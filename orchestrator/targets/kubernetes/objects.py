"""The objects of a run in the cluster: which are its own, and how they are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable

from orchestrator.errors import ExecuteError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.run_record import JobLocation

GONE_SECONDS = 150.0  # a pod has 120 s to end
POLL_SECONDS = 0.5
RUNTIMES = "trainingruntimes"
OWNING = f"{names.MANAGER}-owner"  # a field manager: what `orch` applies is all that it wants
STOPPED = "stop"  # a file of the run's folder: `orch stop` has deleted the job


def pods_of(cluster: Kube, run_id: str) -> list[Object]:
    return cluster.objects("Pod", names.selector(run_id))


def delete_objects(cluster: Kube, at: JobLocation, run_id: str) -> None:
    """The job first, then the rest. Raises ExecuteError where an object of the job's name is not
    the run's."""
    delete_job(cluster, at, run_id)
    delete_rest(cluster, at, run_id)


def delete_job(cluster: Kube, at: JobLocation, run_id: str) -> None:
    path = f"/apis/{at.group}/{at.version}/namespaces/{cluster.namespace}/{at.plural}"
    try:
        job = cluster.job(at.group, at.version, at.plural, at.job)
        check_ours(job, run_id)
        cluster.delete(f"{path}/{at.job}", job["metadata"]["uid"])
    except NotThere:
        pass


def delete_rest(cluster: Kube, at: JobLocation, run_id: str) -> None:
    """What has its run id: pods that read, the files, the runtime. The runtime is last: whoever has
    no right to it has none of them, but may have the files of one that was not made."""
    selector = names.selector(run_id)
    for kind in ("Pod", "ConfigMap", *(["Service"] if at.launcher == "job" else [])):
        for one in cluster.objects(kind, selector):
            if kind == "Pod" and one["metadata"].get("ownerReferences"):
                continue  # the job's own end with it, in their order
            remove_ours(cluster, cluster.core_path(kind), one, run_id)
    if at.launcher == "trainjob":
        base = f"/apis/{at.group}/{at.version}/namespaces/{cluster.namespace}/{RUNTIMES}"
        for one in cluster.list_custom(at.group, at.version, RUNTIMES, selector):
            remove_ours(cluster, base, one, run_id)


def give_owner(cluster: Kube, at: JobLocation, others: Iterable[Object]) -> None:
    """The job owns the other objects of its run: they go when it goes."""
    made = cluster.job(at.group, at.version, at.plural, at.job)
    owner = {
        "apiVersion": f"{at.group}/{at.version}",
        "kind": KINDS[at.launcher].kind,
        "name": at.job,
        "uid": made["metadata"]["uid"],
    }
    for other in others:
        named = {"name": other["metadata"]["name"], "ownerReferences": [owner]}
        owned = {"apiVersion": other["apiVersion"], "kind": other["kind"], "metadata": named}
        cluster.applied(owned, manager=OWNING)


def adopt(cluster: Kube, at: JobLocation, run_id: str) -> None:
    """What somebody has made with kubectl is no job's, and would outlive its own."""
    selector = names.selector(run_id)
    found = [{**one, "apiVersion": "v1", "kind": "ConfigMap"} for one in cluster.objects("ConfigMap", selector)]
    if at.launcher == "job":
        services = cluster.objects("Service", selector)
        found += [{**one, "apiVersion": "v1", "kind": "Service"} for one in services]
    if at.launcher == "trainjob":
        api = {"apiVersion": f"{at.group}/{at.version}", "kind": "TrainingRuntime"}
        runtimes = cluster.list_custom(at.group, at.version, RUNTIMES, selector)
        found += [{**one, **api} for one in runtimes]
    alone = [one for one in found if not one["metadata"].get("ownerReferences")]
    if alone:
        give_owner(cluster, at, alone)


def remove_ours(cluster: Kube, base: str, one: Object, run_id: str) -> None:
    check_ours(one, run_id)
    cluster.delete(f"{base}/{one['metadata']['name']}", one["metadata"]["uid"])


def check_ours(one: Object, run_id: str) -> None:
    """Raises ExecuteError for an object without our label and this run's id."""
    labels = one["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in names.labels(run_id).items()):
        raise ExecuteError(
            f"{one['metadata']['name']} does not have the labels of run {run_id}; it is left alone.",
            hint="Somebody else has made or changed it: `kubectl delete` removes it, if you know what it is.",
        )


def await_gone(cluster: Kube, run_id: str) -> list[str]:
    """Pods that are still there after a while."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        left = [pod["metadata"]["name"] for pod in pods_of(cluster, run_id)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_SECONDS)
