"""The outputs of `node.py runs`, `damaged`, `usage`, `cleanup` and `logs`, and the logs that agents hand to node0.

Each is one JSON object in a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol.agent import Claim
from orch_node.protocol.events import Progress
from orch_node.protocol.outcome import Outcome, ProcessRecord
from orch_node.protocol.values import Measured


@dataclass(frozen=True)
class RunReport:
    """The report of a run until now, as far as it is known."""

    started: Measured | None = None  # when its supervisor began, in seconds since the epoch
    progress: Progress | None = None  # the newest that a rank has reported
    result: dict[str, Any] = field(default_factory=dict)  # the figures that its script reported at its end
    is_nan: bool = False  # whether the last warning of a rank is that its loss stays NaN
    outcome: Outcome | None = None  # how it ended


@dataclass(frozen=True)
class ListedRun:
    """A run on the node."""

    record: Any  # its run.json
    state: str | None  # None if only node0 knows it
    report: RunReport  # without the figures of the progress and the results of the nodes


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
    schema: int = 1


@dataclass(frozen=True)
class NodeUsage:
    """The result of `node.py usage`."""

    load: Measured  # the average number of runnable processes in the last minute
    memory_available: int  # bytes
    reserved: tuple[Claim, ...]  # one for each run; the name of another user's run names the user
    schema: int = 1


@dataclass(frozen=True)
class Cleaned:
    """The result of `node.py cleanup`, by run; a dry run ends and removes nothing."""

    ended: dict[str, tuple[ProcessRecord, ...]] = field(default_factory=dict)
    left: dict[str, tuple[ProcessRecord, ...]] = field(default_factory=dict)  # unwatched, or could not be ended
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of /dev/shm, removed or safe to remove
    # Segments that are in use, or that no known library has created.
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # folders of the store that no run uses
    damaged: tuple[DamagedRun, ...] = ()
    moved: dict[str, str] = field(default_factory=dict)  # folder of a damaged run -> where it is now
    schema: int = 1


@dataclass(frozen=True)
class NodeLogs:
    """The files of a node's ranks in the folder RANKS.

    Attributes:
        node: the name of the node.
        files: their contents in base64, by name.
    """

    node: str
    files: dict[str, str]
