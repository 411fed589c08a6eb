"""A run that waits on this machine for free nodes, until it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orch_node.protocol.events import Event, Waiting
from orch_node.protocol.outcome import REFUSED, STOPPED

from orchestrator.errors import RequestError
from orchestrator.model.hosts import Nodes
from orchestrator.runs import queued, store
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import Outcome, outcome_of
from orchestrator.targets.interface import FetchRequest, NodeCommands, RunHandle

POLL_SECONDS = 0.5


class WaitingRun(RunHandle):
    """A handle of a run that waits, and of the same run after its start.

    Attributes:
        open_run: returns the handle of a run that does not wait.
    """

    def __init__(self, folder: Path, open_run: Callable[[store.Run], RunHandle]) -> None:
        super().__init__(store.load(folder).record, folder)  # its nodes are decided at the start
        self.queue = queued.queue_of(folder) or folder
        self.open_run = open_run

    @property
    def run(self) -> store.Run:
        return store.load(self.folder)

    @property
    def waits(self) -> bool:
        return self.run.state == queued.QUEUED

    @property
    def handle(self) -> RunHandle:
        """Return the handle of the started run.

        Raises:
            RequestError: if it still waits.
        """
        run = self.run
        if run.state == queued.QUEUED:
            raise RequestError(
                f"{run.id} has not started: it {queued.describe_wait(self.folder)}.",
                hint=f"`orch attach {run.id}` follows it, `orch stop {run.id}` ends it.",
            )
        self.record = run.record
        handle = self.open_run(run)
        handle.notify = self.notify
        return handle

    def started(self) -> None:
        """Return at once: the run waits."""

    def await_start(self) -> Iterator[Waiting]:
        """Yield what the run waits for, whenever that changes, until it starts or is stopped."""
        shown = ""
        while self.waits:
            if (reason := queued.describe_wait(self.folder)) != shown:
                shown = reason
                yield Waiting(time=time.time(), text=reason)
            time.sleep(POLL_SECONDS)

    def events(self) -> Iterator[Event]:
        while True:
            yield from self.await_start()
            yield from self.handle.events()
            if not self.is_put_back():
                return

    def is_put_back(self) -> bool:
        """Return whether the run waits again, because another run has taken its cores; the queue decides that."""
        while self.run.state == REFUSED and queued.is_active(self.queue):
            time.sleep(POLL_SECONDS)
        return self.waits

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        while True:
            if follow:
                for _ in self.await_start():
                    pass
            yield from self.handle.logs(rank=rank, follow=follow)
            if not (follow and self.is_put_back()):
                return

    def stop(self) -> CleanupReport:
        if not self.waits:
            return self.handle.stop()
        store.record_end(self.folder, STOPPED)
        queued.unmark(self.folder)
        return CleanupReport(run_id=self.folder.name, seconds=0.0, nodes=())

    def interrupt(self) -> None:
        if self.waits:
            self.stop()
        else:
            self.handle.interrupt()

    def refresh(self) -> None:
        if not self.waits:
            self.handle.refresh()

    def finish(self) -> Outcome:
        return outcome_of(self.run) if self.waits else self.handle.finish()

    def discard(self) -> None:
        self.handle.discard()

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        return self.handle.commands(nodes)

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        return self.handle.fetch(request, listener)
