"""What ends a run on Kubernetes: the job and what belongs to it go, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orch_node.protocol import files

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes.api.exec import PodExec
from orchestrator.targets.kubernetes.objects import STOPPED, await_gone, delete_objects, pods_of
from orchestrator.targets.kubernetes.status import JobState, node_of, pod_state
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
