"""Read a growing file in whole lines, or the end of a long file."""

from __future__ import annotations

import io
import os
from pathlib import Path

CHUNK = 1 << 18
MAX_CHARACTER_BYTES = 4  # of UTF-8


class Tail:
    """A reader of one file.

    Attributes:
        at: the byte up to which the file has been read.
        state: what a terminal shows of the unfinished line that follows, such as a progress bar.
    """

    def __init__(self, path: Path, at: int = 0) -> None:
        """Read a file from a position in bytes."""
        self.path = path
        self.at = at
        self.state = ""

    def lines(self, *, last: bool = False) -> list[str]:
        """Return the next lines, as many as fit into a chunk; with `last`, also an unfinished line."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) == CHUNK:
            end = chunk.rfind(b"\r") + 1 or CHUNK
        elif not end and last:
            end = len(chunk)
        self.at += end
        self.state = last_state(chunk[end:].decode(errors="replace"))
        text = chunk[:end].decode(errors="replace")
        return text.removesuffix("\n").split("\n") if text else []


def last_state(line: str) -> str:
    """Return what a terminal finally shows of a line that a progress bar overwrites with `\\r`."""
    return line.rstrip("\r").rpartition("\r")[2]


def last_text(path: Path, characters: int) -> str:
    """Return the end of a file as text, without reading what is before it; '' if there is no file.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        with path.open("rb") as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_CHARACTER_BYTES * (characters + 1)))
            return text.read()[-characters:]
    except FileNotFoundError:
        return ""
