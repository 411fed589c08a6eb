"""The log of a failed run -> what is known of the errors in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.runs.known_errors import KNOWN_SIGNATURES, Signature

LONGEST_LINE = 2000  # characters; patterns with .* take time by the square of it


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
    for line in dict.fromkeys(line[:LONGEST_LINE] for line in log_text.splitlines()):
        for signature in KNOWN_SIGNATURES:
            if match := re.search(signature.pattern, line):
                answers.setdefault(signature.name, explanation(signature, line, match))
                break
    order = [signature.name for signature in KNOWN_SIGNATURES]
    return tuple(sorted(answers.values(), key=lambda answer: order.index(answer.name)))


def explanation(signature: Signature, line: str, match: re.Match[str]) -> Explanation:
    return Explanation(
        name=signature.name,
        line=line.strip(),
        cause=fill(signature.cause, match),
        cure=fill(signature.cure, match),
    )


def fill(words: str, match: re.Match[str]) -> str:
    """The words with {1}, {2} replaced by what the pattern's groups found."""
    for number, text in enumerate(match.groups(), start=1):
        words = words.replace(f"{{{number}}}", text or "")
    return words
