"""Divide files into blocks: pieces of work that do not depend on the number of ranks.

A document belongs to the block in which it begins and is read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch_training.errors import RecipeError

GAP = b"\n\n"
PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The bytes of a file from `start` up to, but not including, `end`."""

    number: int
    file: Path
    start: int
    end: int


def blocks_of(files: Sequence[Path], size: int) -> list[Block]:
    """Divide files into blocks of at most `size` bytes."""
    ranges = [
        (file, start, min(start + size, file.stat().st_size))
        for file in files
        for start in range(0, file.stat().st_size, size)
    ]
    return [Block(number=number, file=file, start=start, end=end) for number, (file, start, end) in enumerate(ranges)]


def text_documents(block: Block) -> Iterator[str]:
    """Yield the documents that begin in a block; blank lines separate documents.

    Raises:
        RecipeError: if the file has Windows line endings.
    """
    with block.file.open("rb") as file:
        if b"\r\n" in file.read(PIECE):
            raise RecipeError(f"{block.file} has Windows' line ends; turn them into plain ones first.")
        begin = max(0, block.start - len(GAP))
        file.seek(begin)
        data = file.read(block.end - begin)
        while data.find(GAP, max(0, block.end - begin - len(GAP))) < 0:
            more = file.read(PIECE)
            if not more:
                break
            data += more
    position = 0 if block.start == 0 else after_gap(data, 0)
    while 0 <= position < block.end - begin:
        end = data.find(GAP, position)
        text = data[position : end if end >= 0 else len(data)].decode("utf-8", errors="replace").strip()
        if text:
            yield text
        position = after_gap(data, position)


def after_gap(data: bytes, position: int) -> int:
    """Return the position of the next document, or -1 if there is none."""
    gap = data.find(GAP, position)
    return gap + len(GAP) if gap >= 0 else -1
