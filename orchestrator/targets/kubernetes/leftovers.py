"""`orch clean` on Kubernetes: objects of runs whose job is gone, pods that read for them, and jobs
whose time to live is over where no operator ends them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from orchestrator.errors import OrchError
from orchestrator.planning.manifest import Object
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.installed import serves
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Kind
from orchestrator.targets.kubernetes.status import ended_at, pod_state, seconds

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
