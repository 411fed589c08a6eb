"""Explanations of known errors in the log of a failed run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.model.finding import Finding
from orchestrator.runs.known_errors import KNOWN_SIGNATURES

LONGEST_LINE = 2000  # characters; the time of patterns with .* grows with the square of this length
CONTEXT = "During handling of the above exception, another exception occurred:"
TORCH_WARNING = re.compile(r"\[?W\d{4} \d\d:\d\d:")  # of its C++ and its Python part
FRAME = re.compile(r'File "([^"]*)", line \d+')


def explain(log_text: str, *, exception: str = "", all_joined: bool = False) -> tuple[Finding, ...]:
    """Return a finding for each signature that matches a line, in the order of the signatures.

    Only the first signature that matches a line explains it, and each signature explains one line.

    Args:
        log_text: the logs and messages of a failed run.
        exception: the traceback that ended the rank, if it is known. Other lines are then not searched
            for errors that scripts often handle.
        all_joined: whether all ranks have joined the process group. What torch warns about while they
            join, in successful runs as well, then explains nothing.
    """
    explanations: dict[str, Finding] = {}
    reasons = {line for line, _ in lines_with_frames(exception.rpartition(CONTEXT)[2])}
    for line, frame in dict.fromkeys(lines_with_frames(log_text)):
        if all_joined and TORCH_WARNING.match(line):
            continue
        for signature in KNOWN_SIGNATURES:
            if signature.may_be_harmless and exception and line not in reasons:
                continue
            match = re.search(signature.pattern, line)
            if match and (re.search(signature.frame, line) or re.search(signature.frame, frame)):
                cause, cure = fill(signature.cause, match), fill(signature.cure, match)
                finding = Finding(subject=signature.name, message=cause, evidence=line.strip(), cure=cure)
                explanations.setdefault(signature.name, finding)
                break
    order = [signature.name for signature in KNOWN_SIGNATURES]
    return tuple(sorted(explanations.values(), key=lambda entry: order.index(entry.subject)))


def lines_with_frames(log_text: str) -> Iterator[tuple[str, str]]:
    """Yield each line, with the file of the innermost frame if the line ends a traceback."""
    frame = ""
    for text in log_text.splitlines():
        line = text[:LONGEST_LINE].strip()
        if match := FRAME.match(line):
            frame = match.group(1)
        elif not (frame and text[:1].isspace()):  # unlike the error, source lines are indented
            yield line, frame
            frame = ""


def fill(template: str, match: re.Match[str]) -> str:
    """Return the template with {1} and {2} replaced by the groups of the match."""
    for number, text in enumerate(match.groups(), start=1):
        template = template.replace(f"{{{number}}}", text or "")
    return template
