"""The blocks of README and docs/, with their marks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r" *```")
MARK = re.compile(r"<!-- (.*?) -->")


@dataclass(frozen=True)
class Block:
    """`line`: of the page, from 1. `mark`: the comment right above."""

    line: int
    mark: str
    language: str
    text: str

    def commands(self) -> list[list[str]]:
        """The words of each command; without comments."""
        found = []
        for line in self.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set(";|&"):
                    found += [words] if words else []
                    words = []
                else:
                    words.append(word)
        return found


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks."""
    lines = page.read_text().splitlines()
    at, above = 0, ""
    while at < len(lines):
        if FENCE.match(lines[at]):
            end = next(i for i in range(at + 1, len(lines)) if FENCE.match(lines[i]))
            language, text = lines[at].strip().removeprefix("```"), "\n".join(lines[at + 1 : end])
            yield Block(at + 1, above, language, text)
            at, above = end, ""
        mark = MARK.fullmatch(lines[at].strip())
        above = mark[1] if mark else above if not lines[at].strip() else ""
        at += 1


def indented(page: Path) -> list[int]:
    """Lines where a block begins that has no fence, and so no mark and no language."""
    found, fenced, before = [], False, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced = fenced is not bool(FENCE.match(line))
        if not fenced and line.startswith("    ") and not before.strip():
            found.append(number)
        before = line
    return found
