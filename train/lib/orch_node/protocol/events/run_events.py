"""Events of the run as a whole, from the supervisor or another program that watches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol.events.rank_events import Event
from orch_node.protocol.outcome import Failure, NodeEnd


@dataclass(frozen=True)
class Launched(Event):
    """An attempt has started."""

    kind = "launched"
    attempt: int = 1
    ranks: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waiting(Event):
    """The run waits for cores or pods."""

    kind = "waiting"
    text: str = ""


@dataclass(frozen=True)
class Refused(Event):
    """A pod cannot run its part of the run."""

    kind = "refused"
    text: str = ""


@dataclass(frozen=True)
class Failed(Event):
    """The failure that caused the end of the attempt."""

    kind = "failed"
    failure: Failure | None = None


@dataclass(frozen=True)
class Stalled(Event):
    """No rank makes progress."""

    kind = "stalled"
    text: str = ""
    stands: dict[str, str] = field(default_factory=dict)  # rank -> its position in the script


@dataclass(frozen=True)
class NodesLost(Event):
    """Nodes that no longer respond."""

    kind = "lost"
    text: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeNews(Event):
    """A message about a node."""

    kind = "node"
    node: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Stopping(Event):
    """The run is asked to end."""

    kind = "stopping"
    text: str = ""


@dataclass(frozen=True)
class Ended(Event):
    """The result of ending the attempt's processes, per node."""

    kind = "ended"
    nodes: dict[str, NodeEnd] = field(default_factory=dict)


@dataclass(frozen=True)
class Restarting(Event):
    """The next attempt will start."""

    kind = "restarting"
    attempt: int = 1
    of: int = 0  # how many restarts are allowed
    after: Any = None  # what ended the last attempt


@dataclass(frozen=True)
class Finished(Event):
    """The run has ended."""

    kind = "finished"
    state: str = ""
