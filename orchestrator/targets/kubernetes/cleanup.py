"""Delete the objects of a run (`orch stop`), and leftovers of earlier runs (`orch clean`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orch_node.protocol import files

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.planning.manifest import Object
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.api.exec import PodExec
from orchestrator.targets.kubernetes.installed_kinds import serves
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Kind
from orchestrator.targets.kubernetes.objects import STOPPED, await_gone, delete_objects, pods_of
from orchestrator.targets.kubernetes.status import JobState, ended_at, node_of, pod_state, seconds
from orchestrator.targets.kubernetes.watch import KubeWatch

TELL_SECONDS = 5.0


def stop(watch: KubeWatch) -> CleanupReport:
    """Delete the run's job and objects; what its pods have said is kept here first."""
    began = time.monotonic()
    cluster, run_id = watch.cluster, watch.record.run_id
    missed = keep_what_was_said(watch)
    found = [pod_state(pod) for pod in pods_of(cluster, run_id)]
    pods = [pod.pod for pod in found]
    with marked(watch.folder / STOPPED):  # whoever follows the run sees its pods end
        tell_pods(watch, [pod.pod for pod in found if pod.state == "running"])
        delete_objects(cluster, watch.at, run_id)
    left = await_gone(cluster, run_id)
    watch.finish_with(JobState(state="failed"))
    return CleanupReport(
        run_id=run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(node_cleanup(pod, left, missed.get(node_of(pod))) for pod in pods),
    )


@contextmanager
def marked(mark: Path) -> Iterator[None]:
    """The mark stays only if all went well."""
    mark.touch()
    try:
        yield
    except OrchError:
        mark.unlink(missing_ok=True)
        raise


def tell_pods(watch: KubeWatch, running: list[str]) -> None:
    """On the volume, so that no pod takes the kubelet's SIGTERM for one to make room: that would
    only take longer."""
    mark = f"{watch.record.run_dir}/{files.STOP}"
    for pod in running[:1]:
        remote = PodExec(watch.cluster, pod)
        with suppress(OrchError):
            remote.capture(("touch", "--", mark), seconds=TELL_SECONDS)


def keep_what_was_said(watch: KubeWatch) -> dict[str, ExecuteError]:
    """-> node -> why its log could not be kept. A run that was done stays done."""
    if (watch.folder / files.OUTCOME).exists():
        return {}
    missed = watch.catch_up()
    found = watch.look()
    if found is not None and found.state == "done":
        watch.finish_with(found)
    return missed


def node_cleanup(pod: str, left: list[str], missed: ExecuteError | None) -> NodeCleanup:
    there = pod in left
    return NodeCleanup(
        node=node_of(pod),
        state="left" if there else "clean",
        ended=() if there else (f"pod {pod}",),
        left=(f"pod {pod} is still ending",) if there else (),
        segments=(),
        problem=f"its log could not be kept: {missed.message}" if missed else "",
    )


NEW_SECONDS = 600.0  # younger ones may belong to a run that is just being started


def clean(cluster: Kube, *, look: bool) -> CleanupReport:
    """Delete them; with `look`, only tell of them. A run that has its job is never touched."""
    began = time.monotonic()
    found = list(leftovers(cluster))
    if not look:
        for one in found:
            remove(cluster, one)
    told = tuple(described(one) for one in found)
    node = NodeCleanup(
        node=cluster.namespace,
        state="left" if look and told else "clean",
        ended=() if look else told,
        left=told if look else (),
        segments=(),
        problem="",
    )
    return CleanupReport(run_id="", seconds=round(time.monotonic() - began, 2), nodes=(node,))


def remove(cluster: Kube, one: Object) -> None:
    cluster.delete(f"{cluster.path_of(one)}/{one['metadata']['name']}", one["metadata"]["uid"])


def remove_expired(cluster: Kube) -> None:
    """Jobs whose time is over; whoever starts a run may not be allowed to, which is no error."""
    for kind in KINDS.values():
        with contextlib.suppress(OrchError):
            for one in filter(is_expired, jobs_of(cluster, kind)):
                remove(cluster, one)


def leftovers(cluster: Kube) -> Iterator[Object]:
    """What a job owns goes with it by itself."""
    jobs = [job for kind in KINDS.values() for job in jobs_of(cluster, kind)]
    yield from filter(is_expired, jobs)
    living = {run_of(job) for job in jobs}
    for kind in ("Pod", "ConfigMap", "Service"):
        for one in labelled(cluster, kind):
            ended = kind == "Pod" and pod_state(one).state in ("done", "failed")
            alone = run_of(one) not in living or ended
            if alone and not one["metadata"].get("ownerReferences") and age(one) > NEW_SECONDS:
                yield {**one, "kind": kind}


def labelled(cluster: Kube, kind: str) -> list[Object]:
    try:
        return cluster.objects(kind, names.selector())
    except Refused:
        if kind == "Service":  # only runs with --launcher job have them, and need the right
            return []
        raise


def jobs_of(cluster: Kube, kind: Kind) -> list[Object]:
    """All jobs of orch's of a kind in the namespace."""
    try:
        return cluster.list_custom(kind.group, kind.version, kind.plural, names.selector())
    except NotThere:  # this cluster does not have such jobs
        return []
    except Refused:
        if kind.launcher != "job" and serves(cluster, kind.launcher):
            raise
        return []  # rights come before what there is; or whoever may not list them has none


def is_expired(job: Object) -> bool:
    """Whether it has ended, and its time to live after that is over."""
    ttl = (job["metadata"].get("annotations") or {}).get(names.TTL, "")
    ended = ended_at(job)
    return ended is not None and str(ttl).isdecimal() and time.time() - ended >= int(ttl)


def run_of(one: Object) -> str:
    return str(one["metadata"]["labels"][names.RUN])


def age(one: Object) -> float:
    """Seconds since it was made."""
    made = seconds(one["metadata"].get("creationTimestamp"))
    return 0.0 if made is None else time.time() - made


def described(one: Object) -> str:
    return f"{run_of(one)}: {one['kind']} {one['metadata']['name']}"
