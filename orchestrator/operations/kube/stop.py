"""`orch stop` on Kubernetes: the job and what belongs to it, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.backends.kube import Kube
from orchestrator.backends.kube_connect import connect
from orchestrator.backends.kube_errors import NotThere
from orchestrator.card import Whereabouts
from orchestrator.errors import ExecuteError
from orchestrator.kube import names
from orchestrator.kube.job import Object
from orchestrator.kube.place import KubePlace
from orchestrator.kube.status import JobState, node_of
from orchestrator.operations.kube.watch import STOPPED, KubeWatch
from orchestrator.report.swept import NodeSwept, Swept

GONE_SECONDS = 60.0  # a pod has 30 s to end
POLL_SECONDS = 0.5


def stop(where: Whereabouts, folder: Path, *, cluster: Kube | None = None) -> Swept:
    """Delete the run's job and objects; what its pods have said is kept here first."""
    assert where.kube is not None
    began = time.monotonic()
    cluster = cluster or connect(where.kube.context, where.kube.namespace)
    watch = KubeWatch(where, folder, cluster=cluster)
    ended = (folder / "outcome.json").exists()
    missed = {}
    if not ended:
        missed = watch.catch_up()
        found = watch.look()
        ended = found is not None and found.state == "done"
        if ended:
            watch.finish_with(JobState(state="done"))
    pods = [pod["metadata"]["name"] for pod in pods_of(cluster, where.run_id)]
    delete_objects(cluster, where.kube, where.run_id)
    (folder / STOPPED).touch()  # whoever follows the run sees its job gone, and may be quicker
    left = await_gone(cluster, where.run_id)
    if not ended:
        watch.finish_with(JobState(state="failed"))
    return Swept(
        run_id=where.run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(swept(pod, left, missed.get(node_of(pod))) for pod in pods),
    )


def swept(pod: str, left: list[str], missed: ExecuteError | None) -> NodeSwept:
    there = pod in left
    return NodeSwept(
        node=node_of(pod),
        state="left" if there else "clean",
        ended=() if there else (f"pod {pod}",),
        left=(f"pod {pod} is still ending",) if there else (),
        segments=(),
        problem=f"its log could not be kept: {missed.message}" if missed else "",
    )


def pods_of(cluster: Kube, run_id: str) -> list[Object]:
    return cluster.objects("Pod", names.selector(run_id))


def delete_objects(cluster: Kube, kube: KubePlace, run_id: str) -> None:
    """The job first, then what has its run id: pods that read, the runtime, the files.

    Raises ExecuteError where an object of the job's name is not the run's.
    """
    path = f"/apis/{kube.group}/{kube.version}/namespaces/{cluster.namespace}/{kube.plural}"
    try:
        job = cluster.job(kube.group, kube.version, kube.plural, kube.job)
        check_ours(job, run_id)
        cluster.delete(f"{path}/{kube.job}", job["metadata"]["uid"])
    except NotThere:
        pass
    selector = names.selector(run_id)
    if kube.launcher == "trainjob":
        runtimes = "trainingruntimes"
        for one in cluster.list_custom(kube.group, kube.version, runtimes, selector):
            base = path[: -len(kube.plural)] + runtimes
            remove(cluster, base, one, run_id)
    for kind in ("Pod", "ConfigMap"):
        for one in cluster.objects(kind, selector):
            if kind == "Pod" and one["metadata"].get("ownerReferences"):
                continue  # the job's own end with it, in their order
            remove(cluster, cluster.core_path(kind), one, run_id)


def remove(cluster: Kube, base: str, one: Object, run_id: str) -> None:
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
