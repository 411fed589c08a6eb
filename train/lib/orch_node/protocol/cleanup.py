"""The output of `node.py cleanup`: one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.outcome import ProcessRecord

SCHEMA = 1


@dataclass(frozen=True)
class RunEnded:
    """The result of `end`."""

    ended: tuple[ProcessRecord, ...]
    left: tuple[ProcessRecord, ...]  # they could not be ended
    supervisor: bool  # whether the supervisor of the run was on this node
    segments: tuple[str, ...]
    seconds: float
    segments_left: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Leftovers:
    """The result of `look`: leftovers by run."""

    runs: dict[str, tuple[ProcessRecord, ...]] = field(default_factory=dict)  # without a supervisor
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of /dev/shm, safe to remove
    # Segments that are in use, or that no known library has created.
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # folders of the store
    schema: int = SCHEMA


@dataclass(frozen=True)
class CleanedRun:
    """The processes of a run that were ended, and that could not be ended."""

    ended: tuple[ProcessRecord, ...] = ()
    left: tuple[ProcessRecord, ...] = ()


@dataclass(frozen=True)
class Cleaned:
    """The result of `clean`, by run."""

    runs: dict[str, CleanedRun] = field(default_factory=dict)
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # folders of the store, which were removed
    schema: int = SCHEMA


def render(report: RunEnded | Leftovers | Cleaned) -> str:
    """Return a report as JSON."""
    value: dict[str, Any] = values.record(report)
    return json.dumps({"schema": value.pop("schema"), **value})
