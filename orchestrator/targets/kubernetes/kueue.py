"""Check the queues of Kueue, which suspends jobs until there is quota, and explain why a job is suspended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import OrchError, RequestError, did_you_mean
from orchestrator.model.finding import Finding, finding_of
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests.job import trial_job
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.manifests.names import QUEUE
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import condition

GROUP = "kueue.x-k8s.io"
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload of a job
ENABLE = (
    "Ask the administrator to add the kind to integrations.frameworks of Kueue's configuration, or use --launcher job."
)
NO_QUEUES = "`kubectl get localqueues` lists the queues of a namespace. Its administrator creates them."
RESUMES = "it resumes from its newest checkpoint when there is quota again"


def why_suspended(cluster: KubernetesClient, job: Object) -> str:
    """Return why Kueue suspends a job, or "" if it does not or the user may not read that."""
    queue = (job["metadata"].get("labels") or {}).get(QUEUE)
    if queue is None:
        return ""
    try:
        workloads = workloads_of(cluster, job)
    except OrchError:
        return ""
    return describe_workload(workloads[-1], cluster_queue(cluster, queue)) if workloads else ""


def workloads_of(cluster: KubernetesClient, job: Object) -> list[Object]:
    """Return the Workloads that Kueue has created for a job.

    Raises:
        OrchError: if they cannot be read.
    """
    selector = f"{JOB_UID}={job['metadata']['uid']}"
    return cluster.list_custom(GROUP, version(cluster), "workloads", selector)


def version(cluster: KubernetesClient) -> str:
    """Return the version of Kueue's API that the cluster prefers.

    Raises:
        NotThere: if the cluster has no Kueue.
    """
    return str(cluster.get(f"/apis/{GROUP}")["preferredVersion"]["version"])


def describe_unmanaged(cluster: KubernetesClient, job: Object) -> str:
    """Return a warning if a job has a queue and Kueue does not manage it, else "".

    Kueue's webhook suspends each job that it manages when the job is created; the Workload may come
    much later, if Kueue is busy.
    """
    queue = (job["metadata"].get("labels") or {}).get(QUEUE)
    if queue is None or is_suspended(job):
        return ""
    try:
        if workloads_of(cluster, job):
            return ""
    except NotThere:
        return f"queue {queue} has no effect: the cluster has no Kueue"
    except OrchError:  # the user may not list them
        return ""
    return f"queue {queue} has no effect: Kueue has made no Workload for this {job['kind']}. {ENABLE}"


def check_queue(cluster: KubernetesClient, queue: str) -> None:
    """Raise RequestError if the namespace has no such LocalQueue, or the cluster no Kueue."""
    try:
        kueue_version = version(cluster)
    except NotThere:
        raise RequestError(
            f"--k8s queue={queue}: the cluster has no Kueue.",
            hint="Leave the queue out, or ask the administrator to install Kueue.",
        ) from None
    except OrchError:  # without the right, Kueue reports it on the Workload
        return
    try:
        cluster.job(GROUP, kueue_version, "localqueues", queue)
    except NotThere:
        queues = existing_queues(cluster)
        raise RequestError(
            f"There is no LocalQueue '{queue}' in namespace {cluster.namespace}.",
            hint=did_you_mean(queue, queues) if queues else NO_QUEUES,
        ) from None
    except OrchError:
        pass


def existing_queues(cluster: KubernetesClient) -> list[str]:
    try:
        queues = cluster.list_custom(GROUP, version(cluster), "localqueues", "")
    except OrchError:
        return []
    return [str(queue["metadata"]["name"]) for queue in queues]


def queue_finding(cluster: KubernetesClient, settings: KubernetesSettings, launchers: Iterable[str]) -> Finding:
    """Return whether jobs of these launchers would wait in the queue of the settings."""
    queue = str(settings.queue)
    try:
        check_queue(cluster, queue)
        local = cluster.job(GROUP, version(cluster), "localqueues", queue)
    except RequestError as error:
        return finding_of(error, "queue")
    except OrchError as error:
        return finding_of(error, "queue", "unknown")
    if inactive := condition(local.get("status") or {}, "Active", value="False"):
        message = f"LocalQueue {queue} is inactive: {inactive.get('message')}"
        return Finding(subject="queue", message=message, cure="Ask its administrator.")
    managed = {launcher: is_managed(cluster, settings, launcher) for launcher in launchers}
    ignored = [KINDS[launcher].kind for launcher, is_kind_managed in managed.items() if is_kind_managed is False]
    if ignored:
        message = f"Kueue does not manage {', '.join(ignored)}: such runs start without quota"
        return Finding(subject="queue", message=message, cure=ENABLE)
    untried = [KINDS[launcher].kind for launcher, is_kind_managed in managed.items() if is_kind_managed is None]
    if untried:
        message = f"LocalQueue {queue} exists; whether Kueue manages {', '.join(untried)} is unknown"
        return Finding(subject="queue", severity="unknown", message=message)
    kinds = ", ".join(KINDS[launcher].kind for launcher in managed)
    return Finding(subject="queue", severity="ok", message=f"LocalQueue {queue} exists, and Kueue manages {kinds}")


def is_managed(cluster: KubernetesClient, settings: KubernetesSettings, launcher: str) -> bool | None:
    """Return whether Kueue suspends new jobs of a launcher, or None if that cannot be tried.

    Kueue's webhook suspends a job of a kind that it manages when the job is created, which a dry
    run shows. Its configuration is in a namespace that users may not read.
    """
    image = settings.image or "orch-check"
    job = KINDS[launcher].launch(trial_job(replace(settings, image=image)))[-1]
    job["metadata"]["labels"] = {**job["metadata"]["labels"], QUEUE: settings.queue}
    try:
        return is_suspended(cluster.apply_object(job, dry_run=True))
    except OrchError:
        return None


def is_suspended(job: Object) -> bool:
    """Return whether a job of any kind must not start pods yet."""
    spec = job.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def cluster_queue(cluster: KubernetesClient, queue: str) -> str:
    """Return the ClusterQueue of a LocalQueue, or the LocalQueue if it cannot be read."""
    try:
        local = cluster.job(GROUP, version(cluster), "localqueues", queue)
        return f"ClusterQueue {local['spec']['clusterQueue']}"
    except (OrchError, KeyError):
        return f"queue {queue}"


def describe_workload(workload: Mapping[str, Any], queue: str) -> str:
    """Return what a Workload waits for, or why it was evicted."""
    status = workload.get("status") or {}
    if evicted := condition(status, "Evicted"):
        message = evicted.get("message") or evicted.get("reason")
        return f"suspended by Kueue ({evicted.get('reason')}): {message}; {RESUMES}"
    if waiting := condition(status, "QuotaReserved", value="False"):
        return f"waits for quota in {queue}: {waiting.get('message') or waiting.get('reason')}"
    return f"waits for quota in {queue}"
