"""A pod's log -> what its lines are: an event, a rank's line, a rank's figures, or else words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orch_node.protocol import events, files
from orch_node.protocol.events import Event

RANK_LINE = re.compile(r"\[(0|[1-9]\d{0,8})\] ?(.*)", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLine:
    """`file`: of the run's folder, to which `text` is added. `event`: if it is one."""

    file: str
    text: str
    event: Event | None = None
    rank: int | None = None


def parse(line: str, ranks: int) -> PodLine:
    """One line of a pod's output, of a run of so many ranks: there are files for these alone."""
    match = RANK_LINE.fullmatch(line)
    if match and int(match.group(1)) < ranks:
        rank = int(match.group(1))
        return PodLine(file=files.rank_log(rank), text=match.group(2), rank=rank)
    record = as_object(line)
    if record is None:
        return PodLine(file=files.LAUNCHER_LOG, text=line)
    if type(record.get("metrics")) is int and 0 <= record["metrics"] < ranks:
        file = files.rank_metrics(record["metrics"])
        return PodLine(file=file, text=str(record.get("line", "")))
    if (event := events.parse(line)) is not None:
        return PodLine(file=files.EVENTS, text=line, event=event)
    return PodLine(file=files.LAUNCHER_LOG, text=line)


def as_object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a pod's log has been read: the time of its last line, and how many lines of that
    time. The API begins again only at a time, not at a byte."""

    time: str = ""
    same: int = 0


def split_time(line: str) -> tuple[str, str]:
    """(time, text) of a line that the API was asked to stamp: 2026-01-01T12:00:00.123456789Z ..."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", stamp) else (
        "", line
    )  # fmt: skip


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
