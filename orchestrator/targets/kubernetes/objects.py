"""The objects of a run in a cluster: find, own and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.run_record import JobLocation

GONE_SECONDS = 150.0  # a pod has 120 s to terminate
POLL_SECONDS = 0.5
RUNTIMES = "trainingruntimes"
REFUSED_PODS = ("FailedCreatePod", "FailedCreate")  # reasons of events
# A separate field manager, because applying as `orch` would remove other fields.
OWNER_MANAGER = f"{names.MANAGER}-owner"
STOPPED = "stop"  # a file of the run's local folder, which `orch stop` creates


def pods_of(cluster: KubernetesClient, run_id: str) -> list[Object]:
    return cluster.objects("Pod", names.selector(run_id))


def delete_objects(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    """Delete the job of a run, then its other objects.

    Raises:
        ExecuteError: if an object with the job's name does not belong to the run.
    """
    delete_job(cluster, location, run_id)
    delete_other_objects(cluster, location, run_id)


def delete_job(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    path = f"/apis/{location.group}/{location.version}/namespaces/{cluster.namespace}/{location.plural}"
    try:
        job = cluster.job(location.group, location.version, location.plural, location.job)
        check_labels(job, run_id)
        cluster.delete(f"{path}/{location.job}", job["metadata"]["uid"])
    except NotThere:
        pass


def delete_other_objects(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    """Delete what is labelled with a run id: reader pods, the ConfigMap, the service, the runtime.

    The runtime is the last: a user without rights to runtimes cannot have created one, but may have
    created the ConfigMap.
    """
    selector = names.selector(run_id)
    for kind in ("Pod", "ConfigMap", *(["Service"] if location.launcher == "job" else [])):
        for item in cluster.objects(kind, selector):
            if kind == "Pod" and item["metadata"].get("ownerReferences"):
                continue  # Kubernetes deletes the pods of the job
            delete_checked(cluster, cluster.core_path(kind), item, run_id)
    if location.launcher == "trainjob":
        base = f"/apis/{location.group}/{location.version}/namespaces/{cluster.namespace}/{RUNTIMES}"
        for runtime in cluster.list_custom(location.group, location.version, RUNTIMES, selector):
            delete_checked(cluster, base, runtime, run_id)


def refusal_of(cluster: KubernetesClient, job: str) -> str:
    """Return the newest event about pods of a job that could not be created, or an empty string."""
    try:
        events = [event for reason in REFUSED_PODS for event in cluster.events(f"reason={reason}")]
    except OrchError:  # the user may not read them
        return ""
    # The event is about the job, or about an object that its operator has created.
    about_job = [event for event in events if f"{event['involvedObject'].get('name', '')}-".startswith(f"{job}-")]
    return str(about_job[-1].get("message", "")) if about_job else ""


def give_owner(cluster: KubernetesClient, location: JobLocation, objects: Iterable[Object]) -> None:
    """Make the job the owner of other objects, so that Kubernetes deletes them with it."""
    job = cluster.job(location.group, location.version, location.plural, location.job)
    owner = {
        "apiVersion": f"{location.group}/{location.version}",
        "kind": KINDS[location.launcher].kind,
        "name": location.job,
        "uid": job["metadata"]["uid"],
    }
    for item in objects:
        metadata = {"name": item["metadata"]["name"], "ownerReferences": [owner]}
        owned = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata}
        cluster.apply_object(owned, manager=OWNER_MANAGER)


def adopt(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    """Let the job own objects that were created with kubectl, which would outlive it."""
    selector = names.selector(run_id)
    objects = [{**item, "apiVersion": "v1", "kind": "ConfigMap"} for item in cluster.objects("ConfigMap", selector)]
    if location.launcher == "job":
        services = cluster.objects("Service", selector)
        objects += [{**item, "apiVersion": "v1", "kind": "Service"} for item in services]
    if location.launcher == "trainjob":
        api = {"apiVersion": f"{location.group}/{location.version}", "kind": "TrainingRuntime"}
        runtimes = cluster.list_custom(location.group, location.version, RUNTIMES, selector)
        objects += [{**item, **api} for item in runtimes]
    unowned = [item for item in objects if not item["metadata"].get("ownerReferences")]
    if unowned:
        give_owner(cluster, location, unowned)


def delete_checked(cluster: KubernetesClient, base: str, item: Object, run_id: str) -> None:
    check_labels(item, run_id)
    cluster.delete(f"{base}/{item['metadata']['name']}", item["metadata"]["uid"])


def check_labels(item: Object, run_id: str) -> None:
    """Raise ExecuteError if an object does not have the labels of a run."""
    labels = item["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in names.labels(run_id).items()):
        raise ExecuteError(
            f"{item['metadata']['name']} does not have the labels of run {run_id}, and was not deleted.",
            hint="Somebody else has created or changed it. If you know what it is, delete it with `kubectl delete`.",
        )


def await_pods_gone(cluster: KubernetesClient, run_id: str) -> list[str]:
    """Return the pods of a run that still exist after the time in which pods must end."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        remaining = [pod["metadata"]["name"] for pod in pods_of(cluster, run_id)]
        if not remaining or time.monotonic() > deadline:
            return remaining
        time.sleep(POLL_SECONDS)
