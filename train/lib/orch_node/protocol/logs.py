"""The output of `node.py logs`: a JSON object for each chunk of a rank's log."""

from __future__ import annotations

import json
from dataclasses import dataclass

from orch_node.protocol import values


@dataclass(frozen=True)
class LogChunk:
    """Consecutive lines of a rank's log."""

    rank: int
    at: int  # the position in bytes after these lines
    lines: tuple[str, ...]
    state: str = ""  # what a terminal shows of the unfinished line that follows


def parse(line: str | bytes) -> LogChunk:
    """Parse a line of the output.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse_known(LogChunk, line, "a chunk of a log")


def render(chunk: LogChunk) -> str:
    """Return a line of the output."""
    return json.dumps(values.record(chunk))
