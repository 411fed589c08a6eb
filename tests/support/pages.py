"""Read the fenced blocks of README and docs/, with the marks above them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r" *```")
MARK = re.compile(r"<!-- (.*?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int  # of the opening fence, from 1
    mark: str  # text of the comment above the block, or ""
    language: str
    text: str

    def commands(self) -> list[list[str]]:
        """Return the arguments of each command, without comments."""
        commands = []
        for line in self.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
            lexer.whitespace_split = True
            arguments: list[str] = []
            for token in [*lexer, ";"]:
                if set(token) <= set(";|&"):
                    commands += [arguments] if arguments else []
                    arguments = []
                else:
                    arguments.append(token)
        return commands


def blocks(page: Path) -> Iterator[Block]:
    """Yield all fenced blocks of a page."""
    lines = page.read_text().splitlines()
    index, mark = 0, ""
    while index < len(lines):
        if FENCE.match(lines[index]):
            end = next(i for i in range(index + 1, len(lines)) if FENCE.match(lines[i]))
            language, text = lines[index].strip().removeprefix("```"), "\n".join(lines[index + 1 : end])
            yield Block(index + 1, mark, language, text)
            index, mark = end, ""
        elif match := MARK.fullmatch(lines[index].strip()):
            mark = match[1]
        elif lines[index].strip():
            mark = ""
        index += 1
