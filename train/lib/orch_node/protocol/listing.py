"""What `node.py runs` prints: the runs whose files are on a node, as one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.values import Measured

SCHEMA = 1


@dataclass(frozen=True)
class Standing:
    """The newest progress that a rank has reported."""

    phase: str | None
    step: float | None
    steps: float | None
    loss: Measured | None


@dataclass(frozen=True)
class ListedRun:
    """`record`: its run.json. `state` is None where only node0 can know it."""

    record: Any
    state: str | None
    progress: Standing | None


@dataclass(frozen=True)
class DamagedRun:
    """A folder of a run whose record cannot be read, and why."""

    folder: str
    problem: str


@dataclass(frozen=True)
class Listing:
    runs: tuple[ListedRun, ...]
    damaged: tuple[DamagedRun, ...] = ()
    schema: int = SCHEMA


def parse(text: str) -> Listing:
    """Raises ProtocolError."""
    return values.parse(Listing, text, "the list of a node's runs")


def render(listing: Listing) -> str:
    return json.dumps(values.record(listing))


@dataclass(frozen=True)
class SetAside:
    """Of `node.py damaged`: the runs that cannot be read; of those that were moved, folder -> where
    it is now."""

    damaged: tuple[DamagedRun, ...]
    moved: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def render_set_aside(report: SetAside) -> str:
    value = values.record(report)
    return json.dumps({"schema": value.pop("schema"), **value})
