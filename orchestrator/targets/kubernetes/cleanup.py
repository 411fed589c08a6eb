"""Delete the objects of a run (`orch stop`), and leftovers of earlier runs (`orch clean`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orch_node.protocol import files

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.planning.plan import Object
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.api.exec import PodExec
from orchestrator.targets.kubernetes.check import serves
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Kind
from orchestrator.targets.kubernetes.objects import STOPPED, await_pods_gone, delete_objects, pods_of
from orchestrator.targets.kubernetes.status import JobState, created_at, ended_at, node_of, pod_state
from orchestrator.targets.kubernetes.watch import JobWatch

MARK_SECONDS = 5.0


def stop(watch: JobWatch) -> CleanupReport:
    """Copy the logs of a run's pods, then delete its job and its other objects.

    Raises:
        ExecuteError: if the job cannot be deleted.
    """
    began = time.monotonic()
    cluster, run_id = watch.cluster, watch.record.run_id
    errors = copy_logs(watch)
    states = [pod_state(pod) for pod in pods_of(cluster, run_id)]
    with marked(watch.folder / STOPPED):  # for commands that watch the run
        mark_volume(watch, [pod.pod for pod in states if pod.state == "running"])
        delete_objects(cluster, watch.location, run_id)
    remaining = await_pods_gone(cluster, run_id)
    watch.write_outcome(JobState(state="failed"))
    return CleanupReport(
        run_id=run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(node_cleanup(state.pod, remaining, errors.get(state.node)) for state in states),
    )


@contextmanager
def marked(mark: Path) -> Iterator[None]:
    """Create a file, and delete it again after an error."""
    mark.touch()
    try:
        yield
    except OrchError:
        mark.unlink(missing_ok=True)
        raise


def mark_volume(watch: JobWatch, running: list[str]) -> None:
    """Mark the run as stopped on its volume, as far as that is possible.

    A pod would treat the kubelet's SIGTERM as a preemption and write a checkpoint, which takes time.
    """
    mark = f"{watch.record.run_dir}/{files.STOP}"
    for pod in running[:1]:
        remote = PodExec(watch.cluster, pod)
        with suppress(OrchError):
            remote.capture(("touch", "--", mark), seconds=MARK_SECONDS)


def copy_logs(watch: JobWatch) -> dict[str, ExecuteError]:
    """Copy the logs, and the outcome if the run is done; return the errors by node."""
    if (watch.folder / files.OUTCOME).exists():
        return {}
    errors = watch.catch_up()
    state = watch.poll_job()
    if state is not None and state.state == "done":
        watch.write_outcome(state)
    return errors


def node_cleanup(pod: str, remaining: list[str], error: ExecuteError | None) -> NodeCleanup:
    remains = pod in remaining
    return NodeCleanup(
        node=node_of(pod),
        state="left" if remains else "clean",
        ended=() if remains else (f"pod {pod}",),
        left=(f"pod {pod} is still ending",) if remains else (),
        segments=(),
        problem=f"its log could not be copied: {error.message}" if error else "",
    )


NEW_SECONDS = 600.0  # younger objects may belong to a run that is being started


def clean(cluster: KubernetesClient, *, dry_run: bool) -> CleanupReport:
    """Delete leftovers, or only list them; keep everything of a run that has its job.

    Leftovers are objects of runs whose job is gone, pods that read volumes, and expired jobs.
    """
    began = time.monotonic()
    objects = list(leftovers(cluster))
    if not dry_run:
        for leftover in objects:
            remove(cluster, leftover)
    descriptions = tuple(
        f"{run_of(leftover)}: {leftover['kind']} {leftover['metadata']['name']}" for leftover in objects
    )
    node = NodeCleanup(
        node=cluster.namespace,
        state="left" if dry_run and descriptions else "clean",
        ended=() if dry_run else descriptions,
        left=descriptions if dry_run else (),
        segments=(),
        problem="",
    )
    return CleanupReport(run_id="", seconds=round(time.monotonic() - began, 2), nodes=(node,))


def remove(cluster: KubernetesClient, leftover: Object) -> None:
    metadata = leftover["metadata"]
    cluster.delete(f"{cluster.path_of(leftover)}/{metadata['name']}", metadata["uid"])


def remove_expired(cluster: KubernetesClient) -> None:
    """Delete jobs whose time to live has passed, as far as the user may."""
    for kind in KINDS.values():
        with contextlib.suppress(OrchError):
            for job in filter(is_expired, jobs_of(cluster, kind)):
                remove(cluster, job)


def leftovers(cluster: KubernetesClient) -> Iterator[Object]:
    """Yield all leftovers; Kubernetes itself deletes what a deleted job owns."""
    jobs = [job for kind in KINDS.values() for job in jobs_of(cluster, kind)]
    yield from filter(is_expired, jobs)
    living = {run_of(job) for job in jobs}
    for kind in ("Pod", "ConfigMap", "Service"):
        for item in labelled(cluster, kind):
            has_ended = kind == "Pod" and pod_state(item).state in ("done", "failed")
            is_unused = run_of(item) not in living or has_ended
            if is_unused and not item["metadata"].get("ownerReferences") and age(item) > NEW_SECONDS:
                yield {**item, "kind": kind}


def labelled(cluster: KubernetesClient, kind: str) -> list[Object]:
    try:
        return cluster.objects(kind, names.selector())
    except Refused:
        if kind == "Service":  # only runs with --launcher job have services, and need the right
            return []
        raise


def jobs_of(cluster: KubernetesClient, kind: Kind) -> list[Object]:
    """Return the jobs of a kind that orch has created in the namespace."""
    try:
        return cluster.list_custom(kind.group, kind.version, kind.plural, names.selector())
    except NotThere:  # the cluster has no such kind
        return []
    except Refused:
        if kind.launcher != "job" and serves(cluster, kind.launcher):
            raise
        return []  # the API checks rights before it reports that a kind is missing


def is_expired(job: Object) -> bool:
    """Return whether a job has ended and its time to live has passed."""
    ttl = (job["metadata"].get("annotations") or {}).get(names.TTL, "")
    ended = ended_at(job)
    return ended is not None and str(ttl).isdecimal() and time.time() - ended >= int(ttl)


def run_of(item: Object) -> str:
    return str(item["metadata"]["labels"][names.RUN])


def age(item: Object) -> float:
    """Return the seconds since an object was created."""
    created = created_at(item)
    return 0.0 if created is None else time.time() - created
