"""The outputs of `node.py runs`, `damaged`, `usage`, `cleanup` and `logs`, and the logs that agents hand to node0.

Each is one JSON object in a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol.outcome import Outcome, ProcessRecord
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


@dataclass(frozen=True)
class DamagedRuns:
    """The result of `node.py damaged`."""

    damaged: tuple[DamagedRun, ...]
    moved: dict[str, str] = field(default_factory=dict)  # folder -> where it is now
    schema: int = SCHEMA


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


@dataclass(frozen=True)
class RunEnded:
    """The result of `node.py cleanup end`."""

    ended: tuple[ProcessRecord, ...]
    left: tuple[ProcessRecord, ...]  # they could not be ended
    supervisor: bool  # whether the supervisor of the run was on this node
    segments: tuple[str, ...]
    seconds: float
    segments_left: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Leftovers:
    """The result of `node.py cleanup look`: leftovers by run."""

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
    """The result of `node.py cleanup clean`, by run."""

    runs: dict[str, CleanedRun] = field(default_factory=dict)
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    segments_left: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # folders of the store, which were removed
    schema: int = SCHEMA


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
