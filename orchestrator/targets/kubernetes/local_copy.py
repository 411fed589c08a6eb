"""The local folder into which one command at a time copies the logs of a run's pods.

A line of a pod's log is an event, a line of a rank, metrics of a rank, or other text.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from orch_node.protocol import events, files, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import Event, Finished, Heartbeat, UnreadableEvent, render

from orchestrator.files import write_whole
from orchestrator.runs import store
from orchestrator.runs.confined_folder import ConfinedFolder
from orchestrator.runs.state_files import write_json
from orchestrator.targets.kubernetes.objects import STOPPED
from orchestrator.targets.kubernetes.status import JobState, PodState, nodes_of, outcome, seconds

RANK_LINE = re.compile(r"\[(0|[1-9]\d{0,8})\](?: (.*))?", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLine:
    """A parsed line of a pod's log."""

    file: str  # of the run's folder, to which the text is appended
    text: str
    event: Event | None = None
    rank: int | None = None


def parse(line: str, *, ranks: int) -> PodLine:
    """Parse a line of a pod in a run with this number of ranks."""
    match = RANK_LINE.fullmatch(line)
    if match and (rank := int(match.group(1))) < ranks:
        return PodLine(file=files.RANK_LOG.format(rank), text=match.group(2) or "", rank=rank)
    if line.startswith('{"metrics"'):
        with suppress(values.ProtocolError):
            metrics = values.parse(RankMetrics, line, "a rank's metrics")
            if 0 <= metrics.metrics < ranks:
                return PodLine(file=files.RANK_METRICS.format(metrics.metrics), text=metrics.line)
    event = events.parse(line)
    text = render(event).decode().rstrip() if isinstance(event, UnreadableEvent) else line
    return PodLine(file=files.EVENTS if event else files.LAUNCHER_LOG, text=text, event=event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """A line of a rank's metrics."""

    metrics: int  # rank
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position up to which a pod's log is read; the API can resume only at a time."""

    time: str = ""  # of the last line
    same: int = 0  # lines with that time

    @property
    def since(self) -> str | None:
        """Return the time from which to request the log, in whole seconds as the API requires."""
        return re.sub(r"\.\d+", "", self.time) or None


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line of a pod's log with its time, or the mark that the log is read again from a second on."""

    pod: str  # uid
    text: str | None


def with_current_time(event: Event) -> Event:
    return replace(event, time=round(time.time(), 3))


def split_time(line: str) -> tuple[str, str]:
    """Return the time and the text of a line: 2026-01-01T12:00:00.123456789Z TEXT."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if seconds(stamp) is not None else ("", line)


def order(stamp: str) -> tuple[float, str]:
    """Return a sortable key of a time; container runtimes drop trailing zeros of the fraction."""
    fraction = "".join(re.findall(r"\.(\d+)", stamp))
    return seconds(stamp.replace(f".{fraction}", "")) or 0.0, fraction.ljust(9, "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """The positions up to which a run is copied, as saved in its folder."""

    pods: dict[str, Position] = field(default_factory=dict)  # by uid
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each file, up to these positions


POSITIONS = "kube.json"
LOCK = "kube.lock"


class RunCopy:
    """The files of a run's local folder that are copied from the logs of its pods.

    A command appends lines as they come and saves its positions afterwards. If it is killed in between, the API sends
    the next command these lines once more: those of each file beyond its saved size.
    """

    def __init__(self, folder: Path, *, ranks: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.files = ConfinedFolder(folder)
        self.positions: dict[str, Position] = {}  # by uid of the pod
        self.repeated: dict[str, int] = {}  # lines with the time of the position since the log was opened
        self.sizes: dict[str, int] = {}  # saved, by file
        self.expected: dict[str, Counter[bytes]] = {}  # lines that the API sends once more, by file
        self.lock: IO[bytes] | None = None
        self.began = time.time()

    def acquire(self) -> bool:
        """Lock the folder for this command, and continue where the last one has stopped.

        Returns:
            False if another command holds the lock.

        Raises:
            ExecuteError: if the folder cannot be written.
        """
        if self.lock is not None:
            return True
        with self.files.writing(LOCK):
            lock = (self.folder / LOCK).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        except OSError:  # a file system without locks
            pass
        self.lock = lock
        state = values.load(lambda content: values.parse(CopyState, content, POSITIONS), self.folder / POSITIONS)
        state = state or CopyState()  # without positions, the run is copied from its beginning
        self.positions.update(state.pods)
        self.sizes, self.expected = dict(state.sizes), {}
        return True

    def release(self) -> None:
        try:
            self.save_positions()
        finally:
            if self.lock is not None:
                self.lock.close()
                self.lock = None

    def save_positions(self) -> None:
        if self.lock is None:
            return
        # The saved size of a file with lines that are still expected stays.
        settled = [name for name, lines in self.expected.items() if not lines.total()]
        sizes = self.sizes | {name: self.files.size(name) for name in settled}
        state = CopyState(pods=self.positions, sizes=sizes)
        with self.files.writing(POSITIONS):
            write_json(self.folder / POSITIONS, asdict(state))

    def write(self, line: ReadLine) -> Event | None:
        """Copy a line of a pod's log, and return its event unless it was copied before."""
        if line.text is None:
            self.repeated[line.pod] = 0
            return None
        stamp, text = split_time(line.text)
        position = self.next_position(line.pod, stamp) if stamp else self.positions.get(line.pod, Position())
        if position is None:
            return None
        parsed = parse(text, ranks=self.ranks)
        written = isinstance(parsed.event, Heartbeat) or self.append(parsed.file, parsed.text)
        if written and parsed.rank is not None and (time := seconds(stamp)):
            start = self.files.size(parsed.file) - len(parsed.text.encode(errors="replace")) - 1
            self.append(files.RANK_TIMES.format(parsed.rank), f"{start} {time:.3f}")
        self.positions[line.pod] = position
        return parsed.event if written else None

    def next_position(self, pod: str, stamp: str) -> Position | None:
        """Return the position after a line with this time, or None if an earlier response of the API had the line."""
        position = self.positions.get(pod, Position())
        if order(stamp) < order(position.time):
            return None
        self.repeated[pod] = self.repeated.get(pod, 0) + 1 if stamp == position.time else 1
        is_repeated = stamp == position.time and self.repeated[pod] <= position.same
        return None if is_repeated else Position(time=stamp, same=self.repeated[pod])

    def add_event(self, event: Event) -> None:
        self.append(files.EVENTS, render(event).decode().rstrip("\n"))

    def append(self, name: str, text: str) -> bool:
        """Append a line, and return whether it was not there already.

        Raises:
            ExecuteError: if the file cannot be written.
        """
        line = text.encode(errors="replace")
        with self.files.writing(name):
            if self.is_repeated(name, line):
                return False
            self.files.add(name, line + b"\n", self.files.size(name))
            return True

    def is_repeated(self, name: str, line: bytes) -> bool:
        """Return whether the file already has this line, and do not expect it again."""
        if name not in self.expected:
            self.expected[name] = self.unsaved_lines(name)
        expected = self.expected[name]
        if expected[line] > 0:
            expected[line] -= 1
            return True
        if files.rank_of(name.rpartition("/")[2]) is not None:
            expected.clear()  # a rank's lines are in order, so this one and all later ones are new
        return False

    def unsaved_lines(self, name: str) -> Counter[bytes]:
        """Return the lines beyond the saved size; remove a line that was not written completely."""
        try:
            with self.files.open(name, os.O_RDWR) as file:
                start = self.sizes.get(name, 0)
                file.seek(start)
                complete, newline, torn = file.read().rpartition(b"\n")
                if torn:
                    file.truncate(start + len(complete) + len(newline))
        except FileNotFoundError:
            return Counter()
        return Counter(complete.split(b"\n")) if newline else Counter()

    def finish(self, job: JobState, pods: Iterable[PodState]) -> Event:
        """Write the outcome unless it is known, and return the event about it."""
        run = store.load(self.folder)
        if run.outcome is not None:
            return with_current_time(Finished(state=run.outcome.state))
        events = [event for event in run.events() if not isinstance(event, UnreadableEvent)]
        nodes = nodes_of(events)  # torchrun chooses in which pod a rank runs
        layout = tuple(replace(rank, node=nodes.get(rank.rank, rank.node)) for rank in run.record.layout)
        store.write_record(replace(run.record, layout=layout), self.folder, run.origin)
        began = min((event.time for event in events if event.time), default=self.began)
        last = max((event.time for event in events), default=0.0)  # the cluster reports whole seconds
        ended = max(job.ended, last) if job.ended else time.time()
        ending = outcome(events, pods, job, began=began, now=ended)
        if job.state == outcomes.FAILED and (self.folder / STOPPED).exists():
            ending = replace(ending, state=outcomes.STOPPED, first_failure=None, problem=None, nodes={})
        event = replace(with_current_time(Finished(state=ending.state)), time=round(ended, 3))
        self.add_event(event)
        with self.files.writing(files.OUTCOME):
            write_whole(self.folder / files.OUTCOME, outcomes.render(ending))
        self.save_positions()
        return event
