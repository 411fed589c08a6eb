"""The pods of a Kubernetes cluster as a target, and a run on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from orch_node.protocol.events import Event
from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.model.finding import Finding
from orchestrator.model.hostlist import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import Outcome
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
from orchestrator.targets.kubernetes import check, cleanup, find, inputs, logs, start, volume
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.options import REFUSES, KubernetesOptions
from orchestrator.targets.kubernetes.run_record import location_of
from orchestrator.targets.kubernetes.watch import JobWatch


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
        self.watch.started()

    def events(self) -> Iterator[Event]:
        yield from self.watch.events()

    def interrupt(self) -> None:
        """Delete the job with its pods, because there is no supervisor to stop it."""
        self.watch.leave()
        cleanup.stop(JobWatch(self.record, self.folder, ignore, self.cluster))

    def refresh(self) -> None:
        with suppress(NotThere):  # the watch reports a job that was deleted as failed
            self.watch.job()
        self.watch.finish()

    def finish(self) -> Outcome:
        return self.watch.finish()

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        return logs.log_lines(self.watch, rank=rank, follow=follow)

    def discard(self) -> None:
        """Keep the files: a job has claimed its nodes before its ranks can be refused."""

    def stop(self) -> CleanupReport:
        return cleanup.stop(self.watch)

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        location = location_of(self.record)
        raise RequestError(
            f"{self.record.run_id} runs in pods, which kubectl reaches.",
            hint=f"While the pods run: kubectl --namespace {location.namespace} get pods --selector "
            f"{names.selector(self.record.run_id)}, then kubectl --namespace {location.namespace} exec -it POD -- sh.",
        )

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        return volume.fetch(self.cluster, self.record, self.folder, request, listener)


class KubernetesTarget(Target):
    """The target of --on k8s."""

    name = "kubernetes"
    refuses = REFUSES
    options: type[TargetOptions] | None = KubernetesOptions

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        return inputs.plan(request, resume)

    def check(self, request: CheckRequest) -> Iterator[Finding]:
        return check.check(request)

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        record, earlier = start.start(plan, folder)
        return KubernetesHandle(record, folder, earlier=earlier)

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
        return cleanup.clean(find.cluster_of(inventory or ""), dry_run=dry_run)
