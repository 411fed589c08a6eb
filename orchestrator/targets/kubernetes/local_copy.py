"""The local folder into which one command at a time copies the logs of a run's pods."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from orch_node.protocol import files, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import Event, Finished, Heartbeat, UnreadableEvent, render
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
from orchestrator.targets.kubernetes.status import JobState, PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """The positions up to which a run is copied, as saved in its folder."""

    pods: dict[str, Position] = field(default_factory=dict)  # by uid
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each file, up to these positions


class RewrittenLines:
    """The lines of each file behind the saved size, each of which is expected once more."""

    def __init__(self, folder: ConfinedFolder, sizes: dict[str, int]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.expected: dict[str, Counter[bytes]] = {}

    def take(self, name: str, line: bytes) -> bool:
        """Return whether the file has this line already, and expect it no longer."""
        expected = self.expected.get(name)
        if expected is None:
            expected = self.expected[name] = self.read(name)
        if expected[line] > 0:
            expected[line] -= 1
            return True
        if files.rank_of(name.rpartition("/")[2]) is not None:
            expected.clear()  # a rank's lines come in their order: this one is new
        return False

    def read(self, name: str) -> Counter[bytes]:
        """Return the lines behind the saved size; a line that was not written whole is removed."""
        try:
            with self.folder.open(name, os.O_RDWR) as file:
                start = self.sizes.get(name, 0)
                file.seek(start)
                whole, newline, torn = file.read().rpartition(b"\n")
                if torn:
                    file.truncate(start + len(whole) + len(newline))
        except FileNotFoundError:
            return Counter()
        return Counter(whole.split(b"\n")) if newline else Counter()

    def saved_sizes(self) -> dict[str, int]:
        """Return the sizes to save: a file of which lines are still expected keeps its size."""
        settled = [name for name, lines in self.expected.items() if not lines.total()]
        return self.sizes | {name: self.folder.size(name) for name in settled}


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
        events = [event for event in run.events() if not isinstance(event, UnreadableEvent)]
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
