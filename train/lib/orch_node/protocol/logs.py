"""What `node.py logs` prints: lines of the ranks' logs, a JSON object for each chunk."""

from __future__ import annotations

import json
from dataclasses import dataclass

from orch_node.protocol import values


@dataclass(frozen=True)
class LogChunk:
    """`at`: the byte after these lines in the rank's log."""

    rank: int
    at: int
    lines: tuple[str, ...]
    state: str = ""  # what a terminal shows of the line after them, which has no end yet


def parse(line: str | bytes) -> LogChunk:
    """Raises ProtocolError."""
    return values.parse_known(LogChunk, line, "a chunk of a log")


def render(chunk: LogChunk) -> str:
    return json.dumps(values.record(chunk))
