"""The events of a run: a line of JSON each, from its ranks or, of rank -1, from what watches them.

    {"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1", ...}

A field that is not there has its default, one that is not known is dropped: ranks may be of another
version. A script may report kinds of its own, which are `Other`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from orch_node.protocol import values
from orch_node.protocol.outcome import Failure, NodeEnd, Outcome, nodes_record
from orch_node.protocol.outcome import record as outcome_record

NO_RANK = -1
HEADER = ("event", "rank", "time", "restart")


@dataclass(frozen=True)
class Event:
    """`restart`: which of torchrun's restarts the rank belongs to. Times are since the epoch."""

    kind: ClassVar[str] = ""
    rank: int = NO_RANK
    time: float = 0.0
    restart: int = 0


# Of a rank, told by its wrapper and its training process.


@dataclass(frozen=True)
class Started(Event):
    """The training process has been started."""

    kind = "started"
    node: str | None = None
    pid: int = 0
    wrapper: int = 0
    host: str = ""


@dataclass(frozen=True)
class Joined(Event):
    """It is in the process group."""

    kind = "joined"
    node: str | None = None
    pid: int = 0
    cpus: tuple[int, ...] = ()
    threads: int = 0
    backend: str = ""
    torch: str = ""


@dataclass(frozen=True)
class FirstStep(Event):
    """Its optimizer has stepped for the first time."""

    kind = "first_step"
    torch_seed: int = 0


@dataclass(frozen=True)
class Heartbeat(Event):
    """How many collectives and steps it has made, how long its log is: told when one has grown."""

    kind = "pulse"
    collectives: int = 0
    steps: int = 0
    log: int = 0


@dataclass(frozen=True)
class Progress(Event):
    """What the script says of how far it is; `figures`: whatever else it tells."""

    kind = "progress"
    phase: str | None = None
    step: float | None = None
    steps: float | None = None
    loss: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Event):
    """The figures that the script reports at its end."""

    kind = "result"
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unanswered(Event):
    """The rank cannot be asked for its stack traces, and why."""

    kind = "unanswered"
    node: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Raised(Event):
    """Why it cannot go on: a traceback, or one line."""

    kind = "exception"
    text: str = ""


@dataclass(frozen=True)
class Exited(Event):
    """`stopped`: it was asked to. `text`: its last words. `oom`: what shows that memory ran out."""

    kind = "exit"
    node: str | None = None
    code: int = 0
    signal: str | None = None
    stopped: bool = False
    text: str = ""
    oom: str | None = None
    max_rss_bytes: int = 0
    cpu_seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return bool(self.code or self.signal) and not self.stopped


# Of the run as a whole.


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
class OutcomeTold(Event):
    """outcome.json, where nobody else can read it."""

    kind = "outcome"
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Other(Event):
    """A kind of the script's own."""

    name: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


KINDS: dict[str, type[Event]] = {
    one.kind: one
    for one in (
        Started, Joined, FirstStep, Heartbeat, Progress, Result, Unanswered, Raised, Exited,
        Launched, Waiting, Refused, Failed, Stalled, NodesLost, NodeNews, Stopping, Ended,
        Restarting, Finished, OutcomeTold,
    )
}  # fmt: skip
# Signs that a rank gets on.
SIGNS = (Started, Joined, FirstStep, Heartbeat, Progress, Result, Exited)


def parse(line: str | bytes) -> Event | None:
    """None for a line that is no event."""
    try:
        return read(json.loads(line))
    except (ValueError, values.ProtocolError):
        return None


def read(record: object) -> Event:
    """An event as JSON has it. Raises ProtocolError."""
    if not isinstance(record, dict):
        raise values.ProtocolError("an event is an object.")
    name = record.get("event")
    if not isinstance(name, str) or "rank" not in record:
        raise values.ProtocolError("an event has a name and a rank.")
    kind = KINDS.get(name, Other)
    known = {one.name for one in fields(kind)} - {"figures", "name"}
    own = {key: value for key, value in record.items() if key in known}
    if "figures" in values.readers(kind):
        own["figures"] = {k: v for k, v in record.items() if k not in known and k not in HEADER}
    if kind is Other:
        own["name"] = name
    return values.read(kind, own, f"event {name!r:.40}")


def body(event: Event) -> dict[str, Any]:
    """The fields of its own, as JSON has them."""
    found = {one.name: getattr(event, one.name) for one in fields(event)}
    own = {name: value for name, value in found.items() if name not in (*HEADER, "name", "figures")}
    return {**{name: json_form(value) for name, value in own.items()}, **found.get("figures", {})}


def json_form(value: Any) -> Any:
    if isinstance(value, Outcome):
        return outcome_record(value)
    if isinstance(value, dict) and any(isinstance(one, NodeEnd) for one in value.values()):
        return nodes_record(value)
    return values.record(value)


def record(event: Event) -> dict[str, Any]:
    """As JSON has it: what `read` takes."""
    name = event.name if isinstance(event, Other) else event.kind
    head = {"event": name, "rank": event.rank, "time": event.time}
    return {**head, **body(event), **({"restart": event.restart} if event.restart else {})}


def render(event: Event) -> bytes:
    """A line."""
    return json.dumps(record(event)).encode() + b"\n"
