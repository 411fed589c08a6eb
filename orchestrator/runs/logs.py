"""Lines of the ranks' logs without requested stack traces, and the ranks whose logs to show."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.protocol import files
from orch_node.streams import STDOUT, split
from orch_node.tail import Tail

from orchestrator.errors import RequestError
from orchestrator.runs.store import Run

TIME = re.compile(r"(\d{1,15}) (\d{1,11}\.\d{3})", re.ASCII)
# The format of CPython's faulthandler (Python/traceback.c).
TRACE_START = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
TRACE_LINE = re.compile(r'  File ".*", line (?:\d+|\?\?\?) in |  <|  \.\.\.|$')


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a rank's log."""

    rank: int
    node: str
    text: str
    finished: bool = True  # False for the visible state of a line that has no line break yet
    stream: str = STDOUT  # or stderr
    time: float = 0.0  # when it was written, in seconds since the epoch; 0 if that is unknown


class LineParser:
    """Separates the streams in the lines of logs: one may write while a line of the other has no end yet."""

    def __init__(self) -> None:
        self.fragments: dict[tuple[int, str], LogLine] = {}

    def parse(self, rank: int, node: str, text: str, *, finished: bool = True) -> Iterator[LogLine]:
        """Yield the line of a stream that ends with a line of a log, or with `finished` false its state."""
        for number, (piece, stream) in enumerate(pieces := split(text), start=1):
            start = self.fragments.pop((rank, stream), None)
            line = LogLine(rank=rank, node=node, text=(start.text if start else "") + piece, stream=stream)
            if number < len(pieces):
                self.fragments[rank, stream] = line
                continue
            if not finished and start:
                self.fragments[rank, stream] = start
            yield replace(line, finished=finished)

    def end(self) -> Iterator[LogLine]:
        """Yield the lines that have no end."""
        yield from self.fragments.values()
        self.fragments.clear()


def requested_ranks(run: Run, rank: int | None) -> dict[int, str]:
    """Return the node of the requested rank, or of all ranks, by rank.

    Raises:
        RequestError: if the run has no such rank.
    """
    nodes = {rank: node for rank, node, _ in moved_logs(run.folder)}
    nodes |= {placement.rank: placement.node for placement in run.record.layout}
    if rank is not None and rank not in nodes:
        raise RequestError(f"Run {run.id} has ranks 0 to {max(nodes)}.", hint="Without --rank all are shown.")
    return nodes if rank is None else {rank: nodes[rank]}


def followed_lines(
    folder: Path, nodes: Callable[[], Mapping[int, str]], starts: Mapping[Path, int], updates: Iterable[object]
) -> Iterator[LogLine]:
    """Yield the lines in the local logs of ranks as they are written.

    Args:
        folder: the run's folder on this machine.
        nodes: returns the node of each rank.
        starts: the bytes of each log to skip.
        updates: yields whenever there may be new lines, until the run has ended.
    """
    logs: dict[Path, tuple[Tail, LineParser]] = {}

    def lines(*, last: bool) -> Iterator[LogLine]:
        for rank, node, path in local_logs(folder, nodes()):
            if path not in logs:
                logs[path] = Tail(path, starts.get(path, 0)), LineParser()
            tail, parser = logs[path]
            while texts := tail.lines() or (tail.lines(last=True) if last else []):
                yield from (line for text in texts for line in parser.parse(rank, node, text))
            if last:
                yield from parser.end()
            elif tail.state:  # the unfinished line, which a later call may replace
                yield from parser.parse(rank, node, tail.state, finished=False)

    for _ in updates:
        yield from lines(last=False)
    yield from lines(last=True)


def copied_lines(run: Run, nodes: Mapping[int, str], starts: Mapping[Path, int]) -> Iterator[LogLine]:
    """Yield the lines in the local logs of ranks in the order of time.

    Args:
        run: the run.
        nodes: the node of each rank.
        starts: the bytes of each log to skip.
    """
    lines = (rank_lines(path, rank, node, starts.get(path, 0)) for rank, node, path in local_logs(run.folder, nodes))
    return heapq.merge(*lines, key=lambda line: line.time)


def local_logs(folder: Path, nodes: Mapping[int, str]) -> list[tuple[int, str, Path]]:
    """Return the local logs of ranks, also those from nodes on which they have run before: rank, node and path."""
    logs = [(rank, node, folder / files.RANK_LOG.format(rank)) for rank, node in nodes.items()]
    return logs + [log for log in moved_logs(folder) if log[0] in nodes]


def moved_logs(folder: Path) -> list[tuple[int, str, Path]]:
    """Return the local logs of ranks that have run on other nodes than the record has: rank, node and path."""
    ranks = ((files.rank_of(path.name), path) for path in sorted((folder / files.RANKS).glob("*/rank-*.log")))
    return [(rank, path.parent.name, path) for rank, path in ranks if rank is not None]


def rank_lines(path: Path, rank: int, node: str, start: int) -> Iterator[LogLine]:
    """Yield the lines in the log of a rank, each with the time of its end; lines without times come last."""
    log = Tail(path, start)
    parser, times = LineParser(), recorded_times(path.with_suffix(".times"))
    following = next(times, None)
    time = 0.0 if following else math.inf
    while texts := log.lines() or log.lines(last=True):
        for text, end in zip(texts, log.ends, strict=True):
            while following and following[0] < end:
                (_, time), following = following, next(times, None)
            yield from (replace(line, time=time) for line in parser.parse(rank, node, text))
    yield from (replace(line, time=time) for line in parser.end())


def position_at(log: Path, begin: float) -> int:
    """Return the position in the log of a rank from which on it was written at a time or later, if that is known."""
    times = [*recorded_times(log.with_suffix(".times"))]
    return next((position for position, time in times if time >= begin), log.stat().st_size if times else 0)


def recorded_times(path: Path) -> Iterator[tuple[int, float]]:
    """Yield positions in the log of a rank with the times from which on it was written there."""
    times = Tail(path)
    while lines := times.lines():
        for line in lines:
            if match := TIME.fullmatch(line):
                yield int(match[1]), float(match[2])


def without_stack_traces(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines of ranks, in any order, without the stack traces that orch requested, which disturb a screen."""
    inside: set[int] = set()
    for line in lines:
        if not line.finished:
            if line.rank not in inside:
                yield line
        elif TRACE_START.match(line.text):
            inside.add(line.rank)
        elif line.rank not in inside or not TRACE_LINE.match(line.text):
            inside.discard(line.rank)
            yield line
