"""What is told of the run as a whole, by what watches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orch_node.protocol.events.of_ranks import Event
from orch_node.protocol.outcome import Failure, NodeEnd, Outcome


@dataclass(frozen=True)
class Launched(Event):
    """An attempt begins."""

    kind = "launched"
    attempt: int = 1
    ranks: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waiting(Event):
    """For cores, or pods."""

    kind = "waiting"
    text: str = ""


@dataclass(frozen=True)
class Refused(Event):
    """A pod cannot run it."""

    kind = "refused"
    text: str = ""


@dataclass(frozen=True)
class Failed(Event):
    """The rank that is to blame."""

    kind = "failed"
    failure: Failure | None = None


@dataclass(frozen=True)
class Stalled(Event):
    """Nothing gets on. `stands`: rank -> where it stands."""

    kind = "stalled"
    text: str = ""
    stands: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodesLost(Event):
    kind = "lost"
    text: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeNews(Event):
    """Something about a node, in words."""

    kind = "node"
    node: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Stopping(Event):
    kind = "stopping"
    text: str = ""


@dataclass(frozen=True)
class Ended(Event):
    """What ending the attempt came to on each node."""

    kind = "ended"
    nodes: dict[str, NodeEnd] = field(default_factory=dict)


@dataclass(frozen=True)
class Restarting(Event):
    """`attempt` of `of` + 1 begins; `after`: what ended the one before."""

    kind = "restarting"
    attempt: int = 1
    of: int = 0
    after: Any = None


@dataclass(frozen=True)
class Finished(Event):
    kind = "finished"
    state: str = ""


@dataclass(frozen=True)
class OutcomeReported(Event):
    """outcome.json, where nobody else can read it."""

    kind = "outcome"
    outcome: Outcome | None = None
