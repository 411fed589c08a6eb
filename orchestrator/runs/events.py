"""The door for events: lines that ranks and supervisors have written, typed values from here on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from orch_node.protocol.events import Event, LeftOut, Tally, understood

Kind = TypeVar("Kind", bound=Event)


def events_in(lines: Iterable[bytes], *, ranks: int) -> Iterator[Event]:
    """The events of a run of so many ranks (0: nobody knows); in the place of one that cannot be
    read stands a LeftOut. Never raises."""
    for line in lines:
        event = understood(line)
        if 0 < ranks <= event.rank:
            yield LeftOut(time=event.time, text=f"rank {event.rank} is none of this run")
        else:
            yield event


def stored(path: Path, *, ranks: int) -> list[Event]:
    """Those of a whole event log; of one that may not be read, what says so."""
    try:
        return list(events_in(whole_lines(path), ranks=ranks))
    except OSError as error:
        return [LeftOut(text=f"{path.name}: {error.strerror}")]


def newest(path: Path, kind: type[Kind], *, ranks: int) -> Kind | None:
    """The last event of a kind in an event log: found from its end, for a log may be long."""
    try:
        backwards = events_in(reversed(whole_lines(path)), ranks=ranks)
        return next((event for event in backwards if isinstance(event, kind)), None)
    except OSError:
        return None


def whole_lines(path: Path, offset: int = 0) -> list[bytes]:
    """Those from a byte on that are there whole: the last one may be on its way."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(offset)
        *whole, _ = file.read().split(b"\n")
    return whole


def notes(events: Iterable[Event]) -> list[str]:
    """What was left out of them, in words: a line for each rank."""
    return Tally(event for event in events if isinstance(event, LeftOut)).words()
