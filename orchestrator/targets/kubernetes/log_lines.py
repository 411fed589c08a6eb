"""A pod's log -> what its lines are: an event, a rank's line, a rank's figures, or else words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orch_node.protocol import events, files, values
from orch_node.protocol.events import Event, UnreadableEvent
from orch_node.protocol.values import ProtocolError

RANK_LINE = re.compile(r"\[(0|[1-9]\d{0,8})\](?: (.*))?", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLine:
    """`file`: of the run's folder, to which `text` is added. `event`: if it is one."""

    file: str
    text: str
    event: Event | None = None
    rank: int | None = None


def parse(line: str, *, ranks: int) -> PodLine:
    """One line of a pod's output, of a run of so many ranks."""
    match = RANK_LINE.fullmatch(line)
    if match and (rank := int(match.group(1))) < ranks:
        return PodLine(file=files.rank_log(rank), text=match.group(2) or "", rank=rank)
    if (figures := figures_in(line)) and 0 <= figures.metrics < ranks:
        return PodLine(file=files.rank_metrics(figures.metrics), text=figures.line)
    event = events.parse(line)
    if event is None:
        return PodLine(file=files.LAUNCHER_LOG, text=line)
    if isinstance(event, UnreadableEvent):
        return PodLine(file=files.EVENTS, text=events.render(event).decode().rstrip(), event=event)
    return PodLine(file=files.EVENTS, text=line, event=event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """`metrics`: the rank; `line`: of its figures."""

    metrics: int
    line: str


def figures_in(line: str) -> RankFigures | None:
    if not line.startswith('{"metrics"'):
        return None
    try:
        return values.parse(RankFigures, line, "a rank's figures")
    except ProtocolError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a pod's log has been read: the time of its last line, and how many lines of that
    time. The API begins again only at a time, not at a byte."""

    time: str = ""
    same: int = 0


def split_time(line: str) -> tuple[str, str]:
    """(time, text) of a line that the API was asked to stamp: 2026-01-01T12:00:00.123456789Z ..."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", stamp) else ("", line)


class Reader:
    """Lines of one pod's log in order, each once, however often it is begun anew."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.again = 0

    @property
    def since(self) -> str | None:
        """From when to ask: whole seconds, as the API takes them."""
        self.again = 0
        return re.sub(r"\.\d+", "", self.position.time) or None

    def new(self, line: str) -> str | None:
        """The line's text, or None if it has been read before."""
        stamp, text = split_time(line)
        if not stamp:
            return text
        if order(stamp) < order(self.position.time):
            return None
        if stamp != self.position.time:
            self.position = Position(time=stamp, same=1)
            self.again = 1
            return text
        self.again += 1
        if self.again <= self.position.same:
            return None
        self.position = Position(time=stamp, same=self.position.same + 1)
        return text


def order(stamp: str) -> tuple[str, str]:
    """Runtimes drop zeros at the end of the fraction: compare it apart."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
