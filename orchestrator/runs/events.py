"""The door for events: lines that ranks and supervisors have written, typed values from here on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orch_node.protocol.events import Event, parse


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """What is no event says nothing."""
    for line in lines:
        event = parse(line)
        if event is not None:
            yield event


def whole_lines(path: Path, offset: int = 0) -> list[bytes]:
    """Those from a byte on that are there whole: the last one may be on its way."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(offset)
        *whole, _ = file.read().split(b"\n")
    return whole
