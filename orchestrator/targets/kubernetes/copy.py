"""The folder here that a run's pods are followed into, by one command at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from orch_node.protocol import files, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import Event, Finished, Heartbeat, LeftOut, render
from orch_node.protocol.outcome import FAILED
from orch_node.protocol.outcome import STOPPED as STOPPED_STATE
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.files import ConfinedFolder, write_whole
from orchestrator.runs import store
from orchestrator.runs.state_files import read_json, write_json
from orchestrator.targets.kubernetes.follow import ReadLine, of_now
from orchestrator.targets.kubernetes.log_lines import Position, parse
from orchestrator.targets.kubernetes.objects import STOPPED
from orchestrator.targets.kubernetes.outcome import nodes_of, outcome
from orchestrator.targets.kubernetes.rewritten import CopyState, RewrittenLines
from orchestrator.targets.kubernetes.status import JobState, PodState

POSITIONS = "kube.json"
LOCK = "kube.lock"


class RunCopy:
    """What the pods have said, as the files of a run of so many ranks. `positions`: pod -> how far
    it is copied."""

    def __init__(self, folder: Path, *, ranks: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.files = ConfinedFolder(folder)
        self.positions: dict[str, Position] = {}
        self.rewritten = RewrittenLines(self.files, {})
        self.lock: IO[bytes] | None = None
        self.began = time.time()

    def hold(self) -> bool:
        """Whether this command is the one that writes; it goes on from where the last one was."""
        if self.lock is not None:
            return True
        lock = (self.folder / LOCK).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        except OSError:  # a file system without locks
            pass
        self.lock = lock
        state = read_state(self.folder)
        self.positions = dict(state.pods)
        self.rewritten = RewrittenLines(self.files, dict(state.sizes))
        return True

    def release(self) -> None:
        self.keep_positions()
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def keep_positions(self) -> None:
        if self.lock is None:
            return
        state = CopyState(pods=self.positions, sizes=self.rewritten.saved_sizes())
        write_json(self.folder / POSITIONS, asdict(state))

    def write(self, line: ReadLine) -> Event | None:
        """Copy a line of a pod's log; -> the event that it is, unless it was copied before."""
        found = parse(line.text, ranks=self.ranks)
        written = isinstance(found.event, Heartbeat) or self.append(found.file, found.text)
        self.positions[line.pod] = line.position
        return found.event if written else None

    def add_event(self, event: Event) -> None:
        self.append(files.EVENTS, render(event).decode().rstrip("\n"))

    def append(self, name: str, text: str) -> bool:
        """Append a line, and return whether it was not there already.

        Raises:
            ExecuteError: if the file cannot be written.
        """
        line = text.encode(errors="replace")
        try:
            if self.rewritten.take(name, line):
                return False
            self.files.append(name, line + b"\n")
            return True
        except OSError as error:
            raise ExecuteError(
                f"{self.folder / name} cannot be written: {error.strerror}.",
                hint="Links in a run's folder are not followed.",
            ) from None

    def finish(self, job: JobState, pods: Iterable[PodState]) -> Event:
        """Write the outcome, if nobody has; -> the event that says so."""
        run = store.load(self.folder)
        if run.outcome is not None:
            return of_now(Finished(state=run.outcome.state))
        events = [event for event in run.events() if not isinstance(event, LeftOut)]
        relocate(run, events)
        began = min((one.time for one in events if one.time), default=self.began)
        last = max((one.time for one in events), default=0.0)  # the cluster tells whole seconds
        ended = max(job.ended, last) if job.ended else time.time()
        ending = outcome(events, pods, job, began=began, now=ended)
        if job.state == FAILED and (self.folder / STOPPED).exists():
            ending = replace(ending, state=STOPPED_STATE, first_failure=None, problem=None, nodes={})
        event = replace(of_now(Finished(state=ending.state)), time=round(ended, 3))
        self.add_event(event)
        write_whole(self.folder / files.OUTCOME, outcomes.render(ending))
        self.keep_positions()
        return event


def relocate(run: store.Run, events: Iterable[Event]) -> None:
    """torchrun chooses which pod has which rank: plan.json says it as it was."""
    told = nodes_of(events)
    layout = tuple(replace(place, node=told.get(place.rank, place.node)) for place in run.record.layout)
    store.keep(replace(run.record, layout=layout), run.folder, run.origin)


def read_state(folder: Path) -> CopyState:
    """Return how far the run is copied; all logs are read anew if that cannot be read."""
    try:
        return values.read(CopyState, read_json(folder / POSITIONS), POSITIONS)
    except ProtocolError:
        return CopyState()
