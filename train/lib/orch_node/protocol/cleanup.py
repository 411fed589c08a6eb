"""What `node.py cleanup` prints: one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.outcome import ProcessRecord

SCHEMA = 1


@dataclass(frozen=True)
class RunEnded:
    """Of `end`. `supervisor`: whether the run's own was here."""

    ended: tuple[ProcessRecord, ...]
    left: tuple[ProcessRecord, ...]
    supervisor: bool
    segments: tuple[str, ...]
    seconds: float
    segments_left: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Leftovers:
    """Of `look`, by run: processes that nobody watches any more, segments in /dev/shm that
    may be removed, and those that may not: they are not known to be a library's, or are in use."""

    runs: dict[str, tuple[ProcessRecord, ...]] = field(default_factory=dict)
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    schema: int = SCHEMA


@dataclass(frozen=True)
class EndedAndLeft:
    ended: tuple[ProcessRecord, ...] = ()
    left: tuple[ProcessRecord, ...] = ()


@dataclass(frozen=True)
class Cleaned:
    """Of `clean`, by run."""

    runs: dict[str, EndedAndLeft] = field(default_factory=dict)
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    schema: int = SCHEMA


def render(report: RunEnded | Leftovers | Cleaned) -> str:
    value: dict[str, Any] = values.record(report)
    return json.dumps({"schema": value.pop("schema"), **value})
