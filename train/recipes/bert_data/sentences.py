"""Text -> sentences, by rules: no model has to be fetched."""

from __future__ import annotations

import re

END = re.compile(r"(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]*[A-Z0-9\u00c0-\u00de])")
SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|No|vs|etc|e\.g|i\.e|cf|ca|Jr|Sr|Gen|Col|Capt|Lt|Rev|Inc|Ltd|"
    r"Co|Corp|Fig|Vol|pp|approx)|\b[A-Z])\.$"
)


def sentences(text: str) -> list[str]:
    """A line end always ends a sentence; a full stop does, unless it shortens a word or a name."""
    return [found for line in text.splitlines() for found in of_line(line.strip()) if found]


def of_line(line: str) -> list[str]:
    parts: list[str] = []
    at = 0
    for match in END.finditer(line):
        part = line[at : match.end()].rstrip()
        if not SHORT.search(part):
            parts.append(part)
            at = match.end()
    return [*parts, line[at:]] if line else []
