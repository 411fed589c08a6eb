"""The pods of a Kubernetes cluster as a target, and a run on them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.events import Event
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.model.decision import Finding
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import NO_ARRAYS, Resume, TargetOptions, TrainRequest, UnsupportedOption
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, RunOutcome
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.interface import (
    CheckRequest,
    FetchRequest,
    LiveNode,
    NodeCommands,
    Notify,
    RunHandle,
    RunList,
    SharedFolder,
    Target,
    ignore,
)
from orchestrator.targets.kubernetes import find, inputs, names, namespace, objects, volume
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, connect
from orchestrator.targets.kubernetes.objects import STOPPED, await_pods_gone, delete_objects, pods_of
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.run_record import location_of
from orchestrator.targets.kubernetes.status import JobState, PodState, node_of, pod_state
from orchestrator.targets.kubernetes.volume import PodExec
from orchestrator.targets.kubernetes.watch import JobWatch, log_lines

PACKAGES = UnsupportedOption(
    "adds packages to the stack of nodes, and pods have those of their image", "Add the packages to the image."
)
REFUSES: Mapping[str, UnsupportedOption] = {
    **refused_by_manager(
        "Kubernetes",
        inventory="Use --k8s context=NAME and namespace=NAME to choose the cluster.",
        exclude="Use --k8s node_selector.LABEL=VALUE to choose nodes.",
    ),
    "spare_nodes": UnsupportedOption("is for other hosts", "The scheduler of Kubernetes replaces nodes by itself."),
    "mpi": UnsupportedOption("is for ranks that mpirun starts; in pods, torchrun starts them", "Leave --mpi out."),
    "python": UnsupportedOption("is for nodes; pods have the Python of their image", "Use --k8s python=PATH."),
    "image_options": UnsupportedOption("is for containers on nodes", "Use --k8s KEY=VALUE for the settings of pods."),
    "requirements": PACKAGES,
    "extra": PACKAGES,
    "packages": PACKAGES,
    "array": NO_ARRAYS,
    "array_sample": NO_ARRAYS,
}
MARK_TRIES = 2
MARK_SECONDS = 5.0


class KubernetesHandle(RunHandle):
    """A run on Kubernetes, which connects to the cluster only when it needs to."""

    @cached_property
    def cluster(self) -> KubernetesClient:
        location = location_of(self.record)
        return connect(location.context, location.namespace)

    @cached_property
    def watch(self) -> JobWatch:
        notify = lambda line: self.notify(line)  # noqa: E731
        return JobWatch(self.record, self.folder, notify, self.cluster, earlier=self.earlier)

    def started(self) -> None:
        """Raise an error unless the API has the job, which is all that a start needs."""
        self.watch.job()

    def events(self) -> Iterator[Event]:
        yield from self.watch.events()

    def interrupt(self) -> None:
        """Delete the job with its pods, because there is no supervisor to stop it."""
        self.watch.leave()
        stop(JobWatch(self.record, self.folder, ignore, self.cluster))

    def refresh(self) -> None:
        with suppress(NotThere):  # the watch reports a job that was deleted as failed
            self.watch.job()
        self.watch.finish()

    def finish(self) -> RunOutcome:
        return self.watch.finish()

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        return log_lines(self.watch, rank=rank, follow=follow)

    def discard(self) -> None:
        """Keep the files: a job has claimed its nodes before its ranks can be refused."""

    def stop(self) -> CleanupReport:
        return stop(self.watch)

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        location = location_of(self.record)
        raise RequestError(
            f"{self.record.run_id} runs in pods, which kubectl reaches.",
            hint=f"While the pods run: kubectl --namespace {location.namespace} get pods --selector "
            f"{names.selector(self.record.run_id)}, then kubectl --namespace {location.namespace} exec -it POD -- sh.",
        )

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        return volume.fetch(self.cluster, self.record, self.folder, request, listener)


def stop(watch: JobWatch) -> CleanupReport:
    """Copy the logs of a run's pods, then delete its job and its other objects.

    Raises:
        ExecuteError: if the job cannot be deleted.
    """
    began = time.monotonic()
    cluster, run_id = watch.cluster, watch.record.run_id
    errors = copy_logs(watch)
    states = [pod_state(pod) for pod in pods_of(cluster, run_id)]
    mark = watch.folder / STOPPED  # for commands that watch the run
    mark.touch()
    try:
        mark_volume(cluster, watch.record.run_dir, [pod for pod in states if pod.state == "running"])
        delete_objects(cluster, watch.location, run_id)
    except OrchError:
        mark.unlink()
        raise
    remaining = await_pods_gone(cluster, run_id)
    watch.write_outcome(JobState(state="failed"))
    return CleanupReport(
        run_id=run_id,
        seconds=round(time.monotonic() - began, 2),
        nodes=tuple(node_cleanup(state.pod, remaining, errors.get(state.node)) for state in states),
    )


def mark_volume(cluster: KubernetesClient, run_dir: str, running: list[PodState]) -> None:
    """Mark the run as stopped on its volume, as far as that is possible.

    A pod would treat the kubelet's SIGTERM as a preemption and write a checkpoint, which takes time. The pods share the
    volume: the second is asked only if the first one does not respond, as on a node that is lost.
    """
    mark = f"{run_dir}/{files.STOP}"
    for pod in running[:MARK_TRIES]:
        touch = PodExec(cluster, pod.pod, pod.container).open_program(("touch", "--", mark), seconds=MARK_SECONDS)
        with suppress(OrchError), touch as program:
            program.output.read()
            if program.code() == 0:
                return


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
        problem=f"its log could not be copied: {error.message}" if error else "",
    )


class KubernetesTarget(Target):
    """The target of --on k8s."""

    name = "kubernetes"
    refuses = REFUSES
    options: type[TargetOptions] | None = KubernetesOptions

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        return inputs.plan(request, resume)

    def check(self, request: CheckRequest) -> Iterator[Finding]:
        return namespace.check(request)

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        record, earlier = objects.start(plan, folder)
        handle = KubernetesHandle(record, folder, earlier=earlier)
        handle.watch.record_start()
        return handle

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        return KubernetesHandle(record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        return KubernetesHandle(*find.find_run(base, name, inventory, notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        raise RequestError(
            "Pods have their stack in an image, not in a shared folder.",
            hint="Build the image with `orch image build`.",
        )

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> NodeCommands:
        raise RequestError(
            "orch does not run commands in pods.", hint="To get a shell in a pod: kubectl exec -it POD -- sh."
        )

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[LiveNode]:
        raise RequestError("Kubernetes manages its nodes.", hint="kubectl top nodes lists them.")

    def list_runs(self, inventory: str) -> RunList:
        return find.list_runs(inventory)

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        return objects.clean(find.cluster_of(inventory or ""), dry_run=dry_run)
