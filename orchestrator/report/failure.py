"""The error of a failed rank on a few lines: the user's frames, the exception, and the ranks that share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.record import number_ranges

from orchestrator.runs import tracebacks

TEXT_LINES = 25  # of output that has no traceback


def error_lines(text: str, *, is_shown: bool = False) -> Iterator[str]:
    """Yield the lines of a rank's error, with paths as they are on this machine.

    Args:
        text: the traceback, the stack that a fatal signal has left, or the end of the rank's output.
        is_shown: whether the whole text is on the screen already.
    """
    traceback = tracebacks.parse_last(text)
    if traceback is None and (stack := tracebacks.stack_of_signal(text)):
        message = [line for line in text.splitlines() if line.startswith("Fatal Python error: ")]
        traceback = replace(stack, message=message[-1:])
    if traceback is None or not traceback.frames:
        lines = text.splitlines()
        yield from lines[-1 if is_shown else -TEXT_LINES :]
        return
    if is_shown:
        traceback = replace(traceback, frames=traceback.user_frames[-1:])
    yield from tracebacks.shorten(traceback, current_folder())


def current_folder() -> str:
    """Return the current folder, or '' if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def describe_same_error(ranks: tuple[int, ...]) -> list[str]:
    """Return a line about other ranks that ended with the same error, if there are any."""
    if not ranks:
        return []
    return [f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)} had the same error"]
