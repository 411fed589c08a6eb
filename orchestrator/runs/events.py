"""Reading of event logs: lines that ranks and supervisors have written become typed values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

from orch_node.atomic_write import plain
from orch_node.protocol.events import Event, Launched, UnreadableEvent, parse_line

BLOCK_BYTES = 1 << 20  # size of one read
WHOLE_BYTES = 1 << 22  # the progress events of a longer log are thinned out: reading one takes 0.1 ms
PROGRESS = b'"progress"'
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
            complete = (line[:-1] for line in file if line.endswith(b"\n"))  # without one that is still being written
            return list(events_in(thinned(complete, os.fstat(file.fileno()).st_size), ranks=ranks))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [UnreadableEvent(text=f"{path.name}: {error.strerror}")]


def thinned(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the lines of a log; if it is long, only its last progress events and a part of the others."""
    every, end = 1 + size // WHOLE_BYTES, size - WHOLE_BYTES // 16
    position = 0
    for line in lines:
        position += len(line) + 1
        # Not by the number of the line, because ranks may take turns.
        if PROGRESS not in line[:SEARCHED_START] or position > end or crc32(line) % every == 0:
            yield line


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
