"""Reading of event logs: lines that ranks and supervisors have written become typed values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from orch_node.atomic_write import plain
from orch_node.protocol.events import Event, Launched, UnreadableEvent, UnreadableEvents, parse_line

BLOCK_BYTES = 1 << 20  # size of one read
WHOLE_BYTES = 1 << 22  # the progress events of a longer log are thinned out: reading one takes 0.1 ms
PROGRESS = b'"progress"'
RANK = re.compile(rb'"rank": ?(-?[0-9]{1,9})')
SEARCHED_START = 256  # bytes at the start of a line that contain its kind


def events_in(lines: Iterable[bytes], *, ranks: int) -> Iterator[Event]:
    """Yield the events in the lines of a run's log.

    A line that cannot be read becomes an UnreadableEvent.

    Args:
        lines: the lines of the log.
        ranks: the number of ranks of the run, or 0 if it is unknown. Attempts before a resume may have had more.
    """
    for line in lines:
        event = parse_line(line)
        if isinstance(event, Launched) and ranks:
            ranks = max(ranks, event.ranks)
        if 0 < ranks <= event.rank:
            yield UnreadableEvent(time=event.time, text=f"rank {event.rank} does not belong to this run")
        else:
            yield event


def stored(path: Path, *, ranks: int) -> list[Event]:
    """Return the events of a log; a long log loses some of its progress events.

    If the log cannot be read, the result is one event with the reason.
    """
    try:
        with open(path, "rb", opener=plain) as file:
            interval = 1 + os.fstat(file.fileno()).st_size // WHOLE_BYTES
            return list(events_in(thinned(complete_lines(file), interval), ranks=ranks))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [UnreadableEvent(text=f"{path.name}: {error.strerror}")]


def complete_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without the last one if it is still being written."""
    for line in file:
        if line.endswith(b"\n"):
            yield line[:-1]


def thinned(lines: Iterable[bytes], every: int) -> Iterator[bytes]:
    """Yield all lines except progress events, of which each rank's last and one in `every` are retained."""
    if every == 1:
        yield from lines
        return
    counts: dict[bytes, int] = {}  # by rank, as text
    skipped: dict[bytes, bytes] = {}
    for line in lines:
        if PROGRESS not in line[:SEARCHED_START]:
            yield line
            continue
        match = RANK.search(line, 0, SEARCHED_START)
        rank = match[1] if match else b""
        counts[rank] = counts.get(rank, 0) + 1
        if counts[rank] % every:
            skipped[rank] = line
        else:
            skipped.pop(rank, None)
            yield line
    yield from skipped.values()


def whole_lines(path: Path, offset: int = 0) -> list[bytes]:
    """Return the next complete lines after an offset: one block of lines, or one longer line."""
    if not path.exists():
        return []
    with open(path, "rb", opener=plain) as file:
        file.seek(offset)
        content = file.read(BLOCK_BYTES)
        while b"\n" not in content and (more := file.read(BLOCK_BYTES)):
            content += more
    *lines, _ = content.split(b"\n")
    return lines


def last_attempt(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of the last attempt, or all events if no start is recorded."""
    launches = [index for index, event in enumerate(events) if isinstance(event, Launched)]
    return events[launches[-1] :] if launches else events


def notes(events: Iterable[Event]) -> list[str]:
    """Return a line for each rank with the number of its unreadable events and the reason."""
    return UnreadableEvents(event for event in events if isinstance(event, UnreadableEvent)).describe_all()
