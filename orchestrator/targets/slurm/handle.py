"""A run that is a job of Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from orch_node.protocol.events import Event
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.runs import store
from orchestrator.runs.accounting import write as write_accounting
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.runs.fetch import Collected, FetchListener, collect, default_target
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import Outcome, outcome_of
from orchestrator.runs.state_files import outcome_in
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import Tell, Wanted, silent
from orchestrator.targets.slurm import accounting, logs
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.login import host_at, scheduler_at
from orchestrator.targets.slurm.run_folder import run_folder_of
from orchestrator.targets.slurm.scheduler import SILENT
from orchestrator.targets.slurm.watch import JobWatch

STOP_SECONDS = 30.0
GONE_SECONDS = 60.0
END_SECONDS = 10.0  # between a run's outcome and the end of its job
POLL_SECONDS = 0.5
TICK_SECONDS = 0.2


class SlurmHandle:
    """Its supervisor writes the run's files on the shared file system: it is here, or behind a
    login node."""

    def __init__(self, record: RunRecord, folder: Path, tell: Tell = silent) -> None:
        self.record = record
        self.folder = folder
        self.tell = tell

    @cached_property
    def host(self) -> Local | Ssh:
        return host_at(location_of(self.record).login)

    @cached_property
    def watch(self) -> JobWatch:
        return self.watch_by(self.host)

    def watch_by(self, host: Local | Ssh) -> JobWatch:
        if not location_of(self.record).job:
            raise ExecuteError(
                f"{self.record.run_id} was never handed in to Slurm.",
                hint="The same `orch train` command starts it anew.",
            )

        def tell(line: str) -> None:
            self.tell(line)

        kept = run_folder_of(self.record, self.folder, host, tell)
        scheduler = scheduler_at(host, location_of(self.record).cluster)
        return JobWatch(self.record, self.folder, scheduler, kept, tell)

    def started(self) -> None:
        """Slurm has the job: nothing more is needed, unless it can never start."""
        next(iter(self.watch.queued()), None)

    def events(self) -> Iterator[Event]:
        yield from self.watch.events()
        self.record = self.watch.record

    def interrupt(self) -> None:
        self.end()

    def finish(self) -> Outcome:
        try:
            self.watch.run_folder.finish(self.record.output_dir)
        except ConnectionLost as error:
            self.tell(f"nothing more from there: {error.message}")
            return outcome_of(store.load(self.folder))
        self.record_end()
        return outcome_of(store.load(self.folder))

    def record_end(self) -> None:
        """Write how Slurm recorded the job, if it has ended or is about to."""
        watch = self.watch
        if outcome_in(self.folder) is not None:
            until(lambda: watch.state(now=True).ended or watch.away, END_SECONDS, POLL_SECONDS)
        if not watch.state(now=True).ended:
            return
        watch.note_end()
        job, state = watch.job, watch.known.state
        record = watch.run_folder.attempt(lambda: accounting.query(watch.scheduler, job, state), None)
        if record is not None:
            write_accounting(self.folder, record)

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """By a connection of its own: the events may be gone through meanwhile."""
        host = host_at(location_of(self.record).login)
        watch = self.watch_by(host)
        try:
            watch.refresh()
            watch.learn_nodes()
            yield from logs.log_lines(watch, store.load(self.folder), rank=rank, follow=follow)
        finally:
            host.close()

    def discard(self) -> None:
        """Keep the files: a job has claimed its nodes before its ranks can be refused."""

    def stop(self) -> CleanupReport:
        began = time.monotonic()
        problem = self.end()
        told = outcome_in(self.folder)
        known = told.nodes if told else {}
        nodes = tuple(
            NodeCleanup(
                node=name,
                state="unreachable" if problem else "left" if end.left else "clean",
                ended=(f"{end.ended} processes",) if end.ended else (),
                left=tuple(f"{one.name} ({one.pid})" for one in end.left),
                segments=end.segments,
                segments_left=end.segments_left,
                problem=problem or end.lost or "",
            )
            for name, end in known.items()
        )
        job = NodeCleanup(
            node=f"job {self.watch.job}",
            state="left" if problem else "clean",
            ended=(),
            left=(),
            segments=(),
            problem=problem,
        )
        seconds = round(time.monotonic() - began, 3)
        return CleanupReport(run_id=self.record.run_id, seconds=seconds, nodes=(*nodes, job))

    def end(self) -> str:
        """First the supervisor is asked, which names what each node has left; then Slurm ends what
        there is of the job. -> what is wrong, once Slurm has no such job running."""
        watch = self.watch
        found = watch.state(now=True)
        if watch.away:  # the supervisor reads the file, and Slurm ends a job that has no processes
            watch.request_stop()
            stopped = until(self.is_over, STOP_SECONDS)
            return "" if stopped else f"{SILENT}; the run ends as soon as its supervisor sees that"
        if found.state == "RUNNING":
            watch.terminate(0)
            until(lambda: self.is_over() or watch.state().ended, STOP_SECONDS)
        if not watch.state(now=True).ended:
            watch.scheduler.cancel(watch.job)
        if not until(lambda: watch.state(now=True).ended, GONE_SECONDS):
            return f"Slurm still has job {watch.job} as {watch.known.state}"
        watch.note_end()
        return ""

    def is_over(self) -> bool:
        self.watch.refresh()
        return outcome_in(self.folder) is not None

    def fetch(self, wanted: Wanted, listener: FetchListener) -> Collected:
        """From the shared file system; every node sees the same."""
        names = {one.node for one in self.record.nodes}
        if wanted.node is not None and wanted.node not in names:
            raise RequestError(
                f"Run {self.record.run_id} has no node '{wanted.node}'.", hint=f"It has {', '.join(sorted(names))}."
            )
        here = isinstance(self.host, Local)
        target = wanted.to or (Path(wanted.source) if here else default_target(self.folder, wanted.node))
        return collect(self.host, wanted.source, target, only=wanted.only, listener=listener)


def until(true: Callable[[], bool], seconds: float, tick: float = TICK_SECONDS) -> bool:
    """Wait until it is so, for at most so long."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(tick)
    return True
