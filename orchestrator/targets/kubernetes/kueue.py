"""Kueue, which lets jobs wait for quota: what it says of one that is suspended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.manifests.names import QUEUE
from orchestrator.targets.kubernetes.status import condition

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that stands for a job
AGAIN = "it goes on from its newest checkpoint when there is quota again"


def why_suspended(cluster: Kube, job: Object) -> str:
    """In words; empty where Kueue has nothing to do with it, or one may not ask."""
    queue = (job["metadata"].get("labels") or {}).get(QUEUE)
    if queue is None:
        return ""
    try:
        selector = f"{JOB_UID}={job['metadata']['uid']}"
        found = cluster.list_custom(GROUP, VERSION, "workloads", selector)
    except OrchError:
        return ""
    return words(found[-1], cluster_queue(cluster, queue)) if found else ""


def cluster_queue(cluster: Kube, queue: str) -> str:
    """The ClusterQueue behind a LocalQueue; the name of that one where it may not be asked."""
    try:
        there = cluster.job(GROUP, VERSION, "localqueues", queue)
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
