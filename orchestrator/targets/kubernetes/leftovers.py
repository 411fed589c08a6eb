"""`orch clean` on Kubernetes: objects of runs whose job is gone, and pods that read for them."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

from orchestrator.planning.manifest import Object
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.status import pod_state

NEW_SECONDS = 600.0  # younger ones may belong to a run that is just being started


def clean(cluster: Kube, *, look: bool) -> CleanupReport:
    """Delete them; with `look`, only tell of them. A run that has its job is never touched."""
    began = time.monotonic()
    found = list(leftovers(cluster))
    if not look:
        for kind, one in found:
            path = f"{cluster.core_path(kind)}/{one['metadata']['name']}"
            cluster.delete(path, one["metadata"]["uid"])
    told = tuple(described(kind, one) for kind, one in found)
    node = NodeCleanup(
        node=cluster.namespace,
        state="left" if look and told else "clean",
        ended=() if look else told,
        left=told if look else (),
        segments=(),
        problem="",
    )
    return CleanupReport(run_id="", seconds=round(time.monotonic() - began, 2), nodes=(node,))


def leftovers(cluster: Kube) -> Iterator[tuple[str, Object]]:
    """(kind, object): what a job owns goes with it by itself."""
    living = runs_with_jobs(cluster)
    for kind in ("Pod", "ConfigMap"):
        for one in cluster.objects(kind, names.selector()):
            ended = kind == "Pod" and pod_state(one).state in ("done", "failed")
            alone = run_of(one) not in living or ended
            if alone and not one["metadata"].get("ownerReferences") and age(one) > NEW_SECONDS:
                yield kind, one


def runs_with_jobs(cluster: Kube) -> set[str]:
    found = set()
    for kind in KINDS.values():
        try:
            jobs = cluster.list_custom(kind.group, kind.version, kind.plural, names.selector())
        except NotThere:  # this cluster does not have such jobs
            continue
        found |= {run_of(job) for job in jobs}
    return found


def run_of(one: Object) -> str:
    return str(one["metadata"]["labels"][names.RUN])


def age(one: Object) -> float:
    """Seconds since it was made."""
    made = one["metadata"].get("creationTimestamp")
    if made is None:
        return 0.0
    return time.time() - datetime.datetime.fromisoformat(made.replace("Z", "+00:00")).timestamp()


def described(kind: str, one: Object) -> str:
    return f"{run_of(one)}: {kind} {one['metadata']['name']}"
