"""What `node.py runs` prints: the runs whose files are on a node, as one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orch_node.protocol import values

SCHEMA = 1


@dataclass(frozen=True)
class Standing:
    """The newest progress that a rank has reported."""

    phase: str | None
    step: float | None
    steps: float | None
    loss: float | None


@dataclass(frozen=True)
class ListedRun:
    """`record`: its run.json. `state` is None where only node0 can know it."""

    record: Any
    state: str | None
    progress: Standing | None


@dataclass(frozen=True)
class Listing:
    runs: tuple[ListedRun, ...]
    schema: int = SCHEMA


def parse(text: str) -> Listing:
    """Raises ProtocolError."""
    return values.parse(Listing, text, "the list of a node's runs")


def render(listing: Listing) -> str:
    return json.dumps({"schema": listing.schema, "runs": values.record(listing.runs)})
