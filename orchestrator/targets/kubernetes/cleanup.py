"""What ends a run on Kubernetes: the job and what belongs to it go, and nothing else."""

from __future__ import annotations

import time

from orch_node.protocol import files

from orchestrator.errors import ExecuteError
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.objects import STOPPED, await_gone, delete_objects, pods_of
from orchestrator.targets.kubernetes.status import JobState, node_of
from orchestrator.targets.kubernetes.watch import KubeWatch


def stop(watch: KubeWatch) -> CleanupReport:
    """Delete the run's job and objects; what its pods have said is kept here first."""
    began = time.monotonic()
    cluster, run_id = watch.cluster, watch.record.run_id
    missed = keep_what_was_said(watch)
    pods = [pod["metadata"]["name"] for pod in pods_of(cluster, run_id)]
    delete_objects(cluster, watch.at, run_id)
    (watch.folder / STOPPED).touch()  # whoever follows the run sees its job gone, maybe earlier
    left = await_gone(cluster, run_id)
    watch.finish_with(JobState(state="failed"))
    return CleanupReport(
        run_id=run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(node_cleanup(pod, left, missed.get(node_of(pod))) for pod in pods),
    )


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
