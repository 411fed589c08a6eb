"""The output of `node.py runs`, `damaged` and `usage`: the runs on a node, and what they use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.outcome import Outcome
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
    """A run on the node."""

    record: Any  # its run.json
    state: str | None  # None if only node0 knows it
    progress: Standing | None
    result: dict[str, Any] = field(default_factory=dict)  # the figures that its script reported at its end
    is_nan: bool = False  # whether the last warning of a rank is that its loss stays NaN
    started: Measured | None = None  # seconds since the epoch
    outcome: Outcome | None = None  # without the results of the nodes


@dataclass(frozen=True)
class DamagedRun:
    """A run whose record cannot be read, and the reason."""

    folder: str
    problem: str


@dataclass(frozen=True)
class Listing:
    """The runs of a node."""

    runs: tuple[ListedRun, ...]
    damaged: tuple[DamagedRun, ...] = ()
    schema: int = SCHEMA


def parse(text: str) -> Listing:
    """Parse the output of `node.py runs`.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Listing, text, "the list of a node's runs")


def render(listing: Listing) -> str:
    """Return the output of `node.py runs`."""
    return json.dumps(values.record(listing))


@dataclass(frozen=True)
class DamagedRuns:
    """The result of `node.py damaged`."""

    damaged: tuple[DamagedRun, ...]
    moved: dict[str, str] = field(default_factory=dict)  # folder -> where it is now
    schema: int = SCHEMA


def render_damaged_runs(report: DamagedRuns) -> str:
    """Return the output of `node.py damaged`."""
    value = values.record(report)
    return json.dumps({"schema": value.pop("schema"), **value})


@dataclass(frozen=True)
class ReservedCores:
    """The CPUs and GPUs of a node that a run has reserved; the name of another user's run names the user."""

    run: str
    cpus: tuple[int, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeUsage:
    """The result of `node.py usage`."""

    load: Measured  # the average number of runnable processes in the last minute
    memory_available: int  # bytes
    reserved: tuple[ReservedCores, ...]
    schema: int = SCHEMA
