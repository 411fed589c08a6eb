"""The blocks of commands of README and docs/, with their marks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^( *)```(\w*)")
MARK = re.compile(r"^ *<!-- (.*?) -->$")


@dataclass(frozen=True)
class Block:
    """`line`: of the page, from 1. `mark`: the comment right above."""

    line: int
    mark: str
    fenced: bool
    lines: tuple[str, ...]

    def commands(self) -> list[list[str]]:
        """The words of each command; without comments."""
        text = "\n".join(self.lines).replace("\\\n", " ")
        found = []
        for line in text.splitlines():
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
    """Fenced blocks of `sh`, and indented ones that begin with `orch `."""
    lines = page.read_text().splitlines()
    at, above = 0, ""
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence:
            end = at + 1
            while not lines[end].strip().startswith("```"):
                end += 1
            if fence[2] == "sh":
                yield Block(at + 1, above, True, tuple(lines[at + 1 : end]))
            at, above = end + 1, ""
            continue
        if lines[at].startswith("    orch ") and not lines[at - 1].strip():
            end = at
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            yield Block(at + 1, above, False, tuple(line[4:] for line in lines[at:end]))
            at, above = end, ""
            continue
        mark = MARK.match(lines[at])
        above = mark[1] if mark else above if not lines[at].strip() else ""
        at += 1
