"""A file that grows, read in whole lines."""

from __future__ import annotations

from pathlib import Path

CHUNK = 1 << 18


class Tail:
    """`at`: the byte up to which it has been read."""

    def __init__(self, path: Path, at: int = 0) -> None:
        self.path = path
        self.at = at

    def lines(self, *, last: bool = False) -> list[str]:
        """The next ones, as many as fit into a chunk; with `last` also a line without an end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and (last or len(chunk) == CHUNK):
            end = len(chunk)
        self.at += end
        text = chunk[:end].decode(errors="replace")
        return text.removesuffix("\n").split("\n") if text else []
