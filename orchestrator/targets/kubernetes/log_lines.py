"""Parse the lines of a pod's log: events, lines of ranks, metrics of ranks, and other text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from orch_node.protocol import events, files, values
from orch_node.protocol.events import Event, UnreadableEvent
from orch_node.protocol.values import ProtocolError

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
        return PodLine(file=files.rank_log(rank), text=match.group(2) or "", rank=rank)
    if (metrics := parse_metrics(line)) and 0 <= metrics.metrics < ranks:
        return PodLine(file=files.rank_metrics(metrics.metrics), text=metrics.line)
    event = events.parse(line)
    if event is None:
        return PodLine(file=files.LAUNCHER_LOG, text=line)
    if isinstance(event, UnreadableEvent):
        return PodLine(file=files.EVENTS, text=events.render(event).decode().rstrip(), event=event)
    return PodLine(file=files.EVENTS, text=line, event=event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """A line of a rank's metrics."""

    metrics: int  # rank
    line: str


def parse_metrics(line: str) -> RankMetrics | None:
    if not line.startswith('{"metrics"'):
        return None
    try:
        return values.parse(RankMetrics, line, "a rank's metrics")
    except ProtocolError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position up to which a pod's log is read; the API can resume only at a time."""

    time: str = ""  # of the last line
    same: int = 0  # lines with that time


def split_time(line: str) -> tuple[str, str]:
    """Return the time and the text of a line: 2026-01-01T12:00:00.123456789Z TEXT."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", stamp) else ("", line)


def seconds_since_epoch(stamp: str) -> float:
    """Return the time that the API has given to a line, or 0 if it has given none."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT[\d:]{8})(\.\d{1,6})?\d*(?:Z|\+00:00)", stamp)
    if match is None:
        return 0.0
    return datetime.fromisoformat(f"{match[1]}+00:00").timestamp() + float(match[2] or 0)


class Reader:
    """A filter that passes each line of a pod's log once, however often the log is reopened."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.repeated = 0

    @property
    def since(self) -> str | None:
        """Return the time from which to request the log, in whole seconds as the API requires."""
        self.repeated = 0
        return re.sub(r"\.\d+", "", self.position.time) or None

    def new(self, line: str) -> str | None:
        """Return the text of a line, or None if it has been read before."""
        stamp, text = split_time(line)
        if not stamp:
            return text
        if order(stamp) < order(self.position.time):
            return None
        if stamp != self.position.time:
            self.position = Position(time=stamp, same=1)
            self.repeated = 1
            return text
        self.repeated += 1
        if self.repeated <= self.position.same:
            return None
        self.position = Position(time=stamp, same=self.position.same + 1)
        return text


def order(stamp: str) -> tuple[str, str]:
    """Return a sortable key of a time; container runtimes drop trailing zeros of the fraction."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
