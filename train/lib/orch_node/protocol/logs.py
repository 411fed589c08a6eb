"""Logs of ranks as JSON: the output of `node.py logs`, and what agents hand to node0 at the end of a run."""

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


@dataclass(frozen=True)
class NodeLogs:
    """The files of a node's ranks in the folder RANKS.

    Attributes:
        node: the name of the node.
        files: their contents in base64, by name.
    """

    node: str
    files: dict[str, str]


def parse(line: str | bytes) -> LogChunk:
    """Parse a line of the output.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse_known(LogChunk, line, "a chunk of a log")


def render(logs: LogChunk | NodeLogs) -> str:
    """Return a line of the output, or of HANDED_LOGS."""
    return json.dumps(values.record(logs))
