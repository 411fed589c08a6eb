"""Split text into sentences by rules, which need no downloaded model."""

from __future__ import annotations

import re

END = re.compile(r"(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]*[A-Z0-9\u00c0-\u00de])")
SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|No|vs|etc|e\.g|i\.e|cf|ca|Jr|Sr|Gen|Col|Capt|Lt|Rev|Inc|Ltd|"
    r"Co|Corp|Fig|Vol|pp|approx)|\b[A-Z])\.$"
)


def sentences(text: str) -> list[str]:
    """Split a text into sentences.

    The end of a line always ends a sentence. A full stop ends one unless it marks an abbreviation
    or an initial.
    """
    return [sentence for line in text.splitlines() for sentence in of_line(line.strip()) if sentence]


def of_line(line: str) -> list[str]:
    """Split a line into sentences."""
    parts: list[str] = []
    start = 0
    for match in END.finditer(line):
        part = line[start : match.end()].rstrip()
        if not SHORT.search(part):
            parts.append(part)
            start = match.end()
    return [*parts, line[start:]] if line else []
