"""The log of a failed run -> what is known of the errors in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.runs.known_errors import KNOWN_SIGNATURES, Signature

LONGEST_LINE = 2000  # characters; patterns with .* take time by the square of it
FRAME = re.compile(r'File "([^"]*)", line \d+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A line of a log, and what it means."""

    name: str
    line: str
    cause: str
    cure: str

    def describe(self) -> str:
        return f"{self.cause}\n  {self.line}\n  cure: {self.cure}"


def explain(log_text: str) -> tuple[Explanation, ...]:
    """What is known of a log: one answer for each line that a signature knows, in their order.

    A line is claimed by the first signature that knows it; each signature answers once.
    """
    answers: dict[str, Explanation] = {}
    for line, frame in dict.fromkeys(lines_with_frames(log_text)):
        for signature in KNOWN_SIGNATURES:
            match = re.search(signature.pattern, line)
            if match and (re.search(signature.place, line) or re.search(signature.place, frame)):
                answers.setdefault(signature.name, explanation(signature, line, match))
                break
    order = [signature.name for signature in KNOWN_SIGNATURES]
    return tuple(sorted(answers.values(), key=lambda answer: order.index(answer.name)))


def lines_with_frames(log_text: str) -> Iterator[tuple[str, str]]:
    """Yield each line with the file of the innermost frame, if it is the end of a traceback."""
    frame = ""
    for text in log_text.splitlines():
        line = text[:LONGEST_LINE].strip()
        if match := FRAME.match(line):
            frame = match.group(1)
        elif not (frame and text[:1].isspace()):  # source lines are indented, the error is not
            yield line, frame
            frame = ""


def explanation(signature: Signature, line: str, match: re.Match[str]) -> Explanation:
    return Explanation(
        name=signature.name, line=line.strip(), cause=fill(signature.cause, match), cure=fill(signature.cure, match)
    )


def fill(words: str, match: re.Match[str]) -> str:
    """The words with {1}, {2} replaced by what the pattern's groups found."""
    for number, text in enumerate(match.groups(), start=1):
        words = words.replace(f"{{{number}}}", text or "")
    return words
