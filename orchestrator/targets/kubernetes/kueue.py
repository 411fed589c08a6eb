"""Kueue, which lets jobs wait for quota: its queues, and what it says of a suspended job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import OrchError, RequestError, did_you_mean
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.findings import Finding
from orchestrator.targets.kubernetes.manifests.job import trial_job
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.manifests.names import QUEUE
from orchestrator.targets.kubernetes.settings import KubeSettings
from orchestrator.targets.kubernetes.status import condition

GROUP = "kueue.x-k8s.io"
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that stands for a job
ENABLE = "Its administrator adds the kind to integrations.frameworks of Kueue's configuration; or --launcher job."
NO_QUEUES = "`kubectl get localqueues` lists those of a namespace; its administrator makes them."
AGAIN = "it goes on from its newest checkpoint when there is quota again"


def why_suspended(cluster: Kube, job: Object) -> str:
    """In words; empty where Kueue has nothing to do with it, or one may not ask."""
    queue = (job["metadata"].get("labels") or {}).get(QUEUE)
    if queue is None:
        return ""
    try:
        workloads = workloads_of(cluster, job)
    except OrchError:
        return ""
    return words(workloads[-1], cluster_queue(cluster, queue)) if workloads else ""


def workloads_of(cluster: Kube, job: Object) -> list[Object]:
    """Return the Workloads that Kueue has made for a job. Raises OrchError."""
    selector = f"{JOB_UID}={job['metadata']['uid']}"
    return cluster.list_custom(GROUP, version(cluster), "workloads", selector)


def version(cluster: Kube) -> str:
    """Return the version of Kueue's API that the cluster prefers.

    Raises:
        NotThere: if the cluster has no Kueue.
    """
    return str(cluster.get(f"/apis/{GROUP}")["preferredVersion"]["version"])


def describe_unmanaged(cluster: Kube, job: Object) -> str:
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


def check_queue(cluster: Kube, queue: str) -> None:
    """Raise RequestError if the namespace has no such LocalQueue, or the cluster no Kueue."""
    try:
        kueue_version = version(cluster)
    except NotThere:
        raise RequestError(
            f"--k8s queue={queue}: the cluster has no Kueue.", hint="Leave it out, or ask its administrator for Kueue."
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


def existing_queues(cluster: Kube) -> list[str]:
    try:
        queues = cluster.list_custom(GROUP, version(cluster), "localqueues", "")
    except OrchError:
        return []
    return [str(queue["metadata"]["name"]) for queue in queues]


def queue_finding(cluster: Kube, settings: KubeSettings, launchers: Iterable[str]) -> Finding:
    """Return whether jobs of these launchers would wait in the queue of the settings."""
    queue = str(settings.queue)
    try:
        check_queue(cluster, queue)
        local = cluster.job(GROUP, version(cluster), "localqueues", queue)
    except RequestError as error:
        return Finding(topic="queue", state="miss", words=error.message, cure=error.hint)
    except OrchError as error:
        return Finding(topic="queue", state="unknown", words=error.message, cure=error.hint)
    if inactive := condition(local.get("status") or {}, "Active", wanted="False"):
        words = f"LocalQueue {queue} is inactive: {inactive.get('message')}"
        return Finding(topic="queue", state="miss", words=words, cure="Its administrator knows why.")
    managed = {launcher: is_managed(cluster, settings, launcher) for launcher in launchers}
    ignored = [KINDS[launcher].kind for launcher, managed_ in managed.items() if managed_ is False]
    if ignored:
        words = f"Kueue does not manage {', '.join(ignored)}: such runs start without quota"
        return Finding(topic="queue", state="miss", words=words, cure=ENABLE)
    untried = [KINDS[launcher].kind for launcher, managed_ in managed.items() if managed_ is None]
    if untried:
        words = f"LocalQueue {queue} exists; whether Kueue manages {', '.join(untried)} is unknown"
        return Finding(topic="queue", state="unknown", words=words)
    kinds = ", ".join(KINDS[launcher].kind for launcher in managed)
    return Finding(topic="queue", state="ok", words=f"LocalQueue {queue} exists, and Kueue manages {kinds}")


def is_managed(cluster: Kube, settings: KubeSettings, launcher: str) -> bool | None:
    """Return whether Kueue suspends new jobs of a launcher, or None if that cannot be tried.

    Kueue's webhook suspends a job of a kind that it manages when the job is created, which a dry
    run shows. Its configuration is in a namespace that users may not read.
    """
    image = settings.image or "orch-check"
    job = KINDS[launcher].launch(trial_job(replace(settings, image=image, mpi=None)))[-1]
    job["metadata"]["labels"] = {**job["metadata"]["labels"], QUEUE: settings.queue}
    try:
        return is_suspended(cluster.applied(job, dry_run=True))
    except OrchError:
        return None


def is_suspended(job: Object) -> bool:
    """Return whether the job must not start pods yet, in any kind's way to say so."""
    spec = job.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def cluster_queue(cluster: Kube, queue: str) -> str:
    """The ClusterQueue behind a LocalQueue; the name of that one where it may not be asked."""
    try:
        there = cluster.job(GROUP, version(cluster), "localqueues", queue)
        return f"ClusterQueue {there['spec']['clusterQueue']}"
    except (OrchError, KeyError):
        return f"queue {queue}"


def words(workload: Mapping[str, Any], where: str) -> str:
    status = workload.get("status") or {}
    if evicted := condition(status, "Evicted"):
        why = evicted.get("message") or evicted.get("reason")
        return f"suspended by Kueue ({evicted.get('reason')}): {why}; {AGAIN}"
    if waits := condition(status, "QuotaReserved", wanted="False"):
        return f"waits for quota in {where}: {waits.get('message') or waits.get('reason')}"
    return f"waits for quota in {where}"
