"""Read a growing file in whole lines, or the end of a long file."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import BinaryIO, TypeVar

from orch_node import streams
from orch_node.atomic_write import plain
from orch_node.protocol.events import Event, Warned, parse_line

Kind = TypeVar("Kind", bound=Event)

CHUNK = 1 << 18
LINE_END = re.compile(rb"\n")
NEAR_END_BYTES = 1 << 23  # size of the part at the end that lines_backwards() reads by default
MAX_CHARACTER_BYTES = 4  # of UTF-8


class Tail:
    """A reader of one file.

    Attributes:
        at: the byte up to which the file has been read.
        ends: the bytes at which the lines end that were returned last.
        state: what a terminal shows of the unfinished line that follows, such as a progress bar.
    """

    def __init__(self, path: Path, at: int = 0) -> None:
        """Read a file from a position in bytes."""
        self.path = path
        self.at = at
        self.ends: list[int] = []
        self.state = ""
        self.stream = streams.STDOUT  # of the line that was divided there

    def lines(self, *, last: bool = False) -> list[str]:
        """Return the next lines, as many as fit into a chunk; with `last`, also an unfinished line."""
        try:
            with open(self.path, "rb", opener=plain) as file:
                file.seek(self.at)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) == CHUNK:
            end = chunk.rfind(b"\r") + 1 or CHUNK
        elif not end and last:
            end = len(chunk)
        self.ends = [self.at + match.end() for match in LINE_END.finditer(chunk, 0, end)]
        self.at += end
        self.ends += [self.at] if end and self.at not in self.ends[-1:] else []
        text = streams.mark(chunk[:end].decode(errors="replace"), self.stream)
        if end:
            self.stream = streams.STDOUT if text.endswith("\n") else streams.split(text.rpartition("\n")[2])[-1][1]
        unfinished = streams.mark(chunk[end:].decode(errors="replace"), self.stream)
        state, stream = streams.split(unfinished)[-1]
        self.state = streams.mark(last_state(state), stream) if last_state(state) else ""
        return text.removesuffix("\n").split("\n") if end else []


def last_state(line: str) -> str:
    """Return what a terminal finally shows of a line that a progress bar overwrites with `\\r`."""
    return line.rstrip("\r").rpartition("\r")[2]


def last_text(path: Path, characters: int, start: int = 0) -> str:
    """Return the end of a file as text, without reading what is before it or `start`; '' if it cannot be read."""
    try:
        with open(path, "rb", opener=plain) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - MAX_CHARACTER_BYTES * (characters + 1)))
            return streams.without_marks(text.read())[-characters:]
    except OSError:
        return ""


def lines_backwards(file: BinaryIO, limit: int | None = None) -> list[bytes]:
    """Return the complete lines in the last bytes of a file, at most `limit` or NEAR_END_BYTES, from the end."""
    start = max(0, file.seek(0, os.SEEK_END) - (limit or NEAR_END_BYTES))
    file.seek(start)
    first_part, *lines = file.read(limit or NEAR_END_BYTES).split(b"\n")
    return [first_part, *lines][-2::-1] if start == 0 else lines[-2::-1]


def newest_event(log: Path, kind: type[Kind], limit: int | None = None) -> Kind | None:
    """Return the last event of a kind in the last bytes of a log, at most `limit` or NEAR_END_BYTES, or None.

    Figures are those of rank 0, which represents all ranks, if it has reported any.
    """
    name, newest = f'"{kind.kind}"'.encode(), None
    with contextlib.suppress(OSError), open(log, "rb", opener=plain) as file:
        for line in lines_backwards(file, limit):
            if name in line and (newest is None or b'"rank": 0,' in line):
                event = parse_line(line)
                if isinstance(event, kind):
                    if event.rank == 0 or kind is Warned:
                        return event
                    newest = newest or event
    return newest
