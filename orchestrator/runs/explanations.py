"""Explanations of known errors in the log of a failed run, by the signatures in known_errors.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from orch_node.protocol import values

from orchestrator.files import tomllib
from orchestrator.model.decision import Finding
from orchestrator.runs.tracebacks import Frame, parse_frame

LONGEST_LINE = 2000  # characters; the time of patterns with .* grows with the square of this length
CONTEXT = "During handling of the above exception, another exception occurred:"
TORCH_WARNING = re.compile(r"\[?W\d{4} \d\d:\d\d:")  # of its C++ and its Python part
FILE = Path(__file__).with_name("known_errors.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Patterns that identify an error, with its cause and a hint.

    Attributes:
        name: the name of the error.
        patterns: regular expressions that are searched in a single line; the first that matches counts.
        cause: the cause of the error; `{1}` is replaced by the first group of the pattern.
        hint: what the user can do about it, with the same replacements.
        cause_on_gpus: the cause on nodes with GPUs, if it is another one.
        hint_on_gpus: the same for the hint.
        frame: a regular expression that the line or the file of the innermost frame of its traceback
            must match, so that an error of the script itself gets no explanation; with the same replacements, and
            `{rendezvous}` for software that connects ranks.
        caller: a regular expression that the file and the function of one of the frames must match.
        from_script: whether one of the frames must be of the user's code.
        hides: the names of signatures whose errors are consequences of this one.
        may_be_harmless: whether scripts often continue after this error. If the exception that ended the
            rank is known, only that exception is explained by this signature.
    """

    name: str
    patterns: tuple[str, ...]
    cause: str
    hint: str
    cause_on_gpus: str = ""
    hint_on_gpus: str = ""
    frame: str = ""
    caller: str = ""
    from_script: bool = False
    hides: tuple[str, ...] = ()
    may_be_harmless: bool = False


@cache
def known_signatures() -> tuple[Signature, ...]:
    """Return the signatures in the order in which explanations are shown: errors that cause other errors come first."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    signatures = (values.read(Signature, entry, FILE.name) for entry in content["signatures"])
    rendezvous = "|".join(content["rendezvous"])
    return tuple(replace(item, frame=item.frame.replace("{rendezvous}", rendezvous)) for item in signatures)


def explain(log: str, *, exception: str = "", all_joined: bool = False, on_gpus: bool = False) -> tuple[Finding, ...]:
    """Return a finding for each signature that matches a line, in the order of the signatures.

    Only the first signature that matches a line explains it, and each signature explains one line.

    Args:
        log: the logs and messages of a failed run.
        exception: the traceback that ended the rank, if it is known. Other lines are then not searched
            for errors that scripts often handle.
        all_joined: whether all ranks have joined the process group. What torch warns about while they
            join, in successful runs as well, then explains nothing.
        on_gpus: whether the nodes have GPUs.
    """
    explanations: dict[str, Finding] = {}
    reasons = {line for line, _ in lines_with_frames(exception.rpartition(CONTEXT)[2])}
    for line, frames in dict.fromkeys(lines_with_frames(log)):
        if all_joined and TORCH_WARNING.match(line):
            continue
        for signature in known_signatures():
            if signature.may_be_harmless and exception and line not in reasons:
                continue
            match = next(filter(None, (re.search(pattern, line) for pattern in signature.patterns)), None)
            if match and raised_where_expected(signature, match, line, frames):
                cause = fill((on_gpus and signature.cause_on_gpus) or signature.cause, match)
                hint = fill((on_gpus and signature.hint_on_gpus) or signature.hint, match)
                finding = Finding(subject=signature.name, message=cause, evidence=line.strip(), hint=hint)
                explanations.setdefault(signature.name, finding)
                break
    matched = [signature for signature in known_signatures() if signature.name in explanations]
    hidden = {name for signature in matched for name in signature.hides}
    names = dict.fromkeys(signature.name for signature in matched)  # several signatures may have the same
    return tuple(explanations[name] for name in names if name not in hidden)


def raised_where_expected(signature: Signature, match: re.Match[str], line: str, frames: tuple[Frame, ...]) -> bool:
    """Return whether the line and the frames of its traceback are those that a signature expects."""
    pattern = fill(signature.frame, match, as_pattern=True)
    innermost = frames[-1].path if frames else ""
    if not (re.search(pattern, line) or re.search(pattern, innermost)):
        return False
    if signature.from_script and all(frame.is_library for frame in frames):
        return False
    callers = (f"{frame.path} {frame.function}" for frame in frames)
    return not signature.caller or any(re.search(signature.caller, caller) for caller in callers)


def lines_with_frames(log_text: str) -> Iterator[tuple[str, tuple[Frame, ...]]]:
    """Yield each line, with the frames of its traceback if the line ends one."""
    frames: list[Frame] = []
    for text in log_text.splitlines():
        line = text[:LONGEST_LINE].strip()
        if frame := parse_frame(line):
            frames.append(frame)
        elif not (frames and text[:1].isspace()):  # unlike the error, source lines are indented
            yield line, tuple(frames)
            frames = []


def fill(template: str, match: re.Match[str], *, as_pattern: bool = False) -> str:
    """Return the template with {1} and {2} replaced by the groups of the match, as text or as a regular expression."""
    for number, text in enumerate(match.groups(), start=1):
        value = re.escape(text or "") if as_pattern else text or ""
        template = template.replace(f"{{{number}}}", value)
    return template
