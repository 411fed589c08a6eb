"""A run whose nodes are pods of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from orch_node.protocol.events import Event
from orch_node.protocol.record import RunRecord

from orchestrator.runs.cleanup import CleanupReport
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import Outcome
from orchestrator.targets.interface import Tell, Wanted, silent
from orchestrator.targets.kubernetes import cleanup, fetch, logs
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.location import location_of
from orchestrator.targets.kubernetes.watch import KubeWatch


class KubeHandle:
    """The cluster is asked for the first time when something is wanted of it."""

    def __init__(self, record: RunRecord, folder: Path, tell: Tell = silent) -> None:
        self.record = record
        self.folder = folder
        self.tell = tell

    @cached_property
    def cluster(self) -> Kube:
        at = location_of(self.record)
        return connect(at.context, at.namespace)

    @cached_property
    def watch(self) -> KubeWatch:
        return KubeWatch(self.record, self.folder, lambda line: self.tell(line), self.cluster)

    def started(self) -> None:
        self.watch.started()

    def events(self) -> Iterator[Event]:
        yield from self.watch.events()

    def interrupt(self) -> None:
        """There is no supervisor to ask: the job goes, and its pods with it."""
        self.watch.leave()
        cleanup.stop(KubeWatch(self.record, self.folder, silent, self.cluster))

    def finish(self) -> Outcome:
        return self.watch.finish()

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        return logs.log_lines(self.watch, rank=rank, follow=follow)

    def discard(self) -> None:
        """Keep the files: a job has claimed its nodes before its ranks can be refused."""

    def stop(self) -> CleanupReport:
        return cleanup.stop(self.watch)

    def fetch(self, wanted: Wanted, listener: FetchListener) -> Collected:
        return fetch.fetch(self.cluster, self.record, self.folder, wanted, listener)
