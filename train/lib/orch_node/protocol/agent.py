"""What the supervisor asks the agent of a node, and what that answers: a line of JSON each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch_node.protocol import values
from orch_node.protocol.outcome import ProcessRecord


@dataclass(frozen=True)
class Claim:
    """The cores of a node that a run is given."""

    run: str
    run_dir: str
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Response:
    """Done, and nothing to say of it."""


@dataclass(frozen=True)
class ClaimConflicts(Response):
    """What is in the way of a claim."""

    taken: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Alive(Response):
    """A sign of life.

    Attributes:
        host: the node's host name.
        time: seconds since the epoch, by the node's own clock.
        preempted: whether the agent received SIGTERM: the job is preempted.
    """

    host: str = ""
    time: float = 0.0
    preempted: bool = False


@dataclass(frozen=True)
class RankStack:
    """`stack`: what the rank has written, `kernel`: what the kernel says of its process."""

    pid: int
    stack: str
    kernel: dict[str, str]


@dataclass(frozen=True)
class StackTraces(Response):
    """By rank."""

    ranks: dict[str, RankStack] = field(default_factory=dict)


@dataclass(frozen=True)
class PreemptedRanks(Response):
    """`ranks`: those that have been told, and take it."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContainerStarted(Response):
    problem: str | None = None


@dataclass(frozen=True)
class AllEnded(Response):
    """What became of the run's processes and containers, and of its segments in /dev/shm: those
    that were removed, and those that are no one's to remove."""

    ended: tuple[ProcessRecord, ...] = ()
    left: tuple[ProcessRecord, ...] = ()
    segments: tuple[str, ...] = ()
    segments_left: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Request:
    ask: ClassVar[str] = ""
    answer: ClassVar[type[Response]] = Response


@dataclass(frozen=True)
class TakeClaim(Request):
    ask = "claim"
    answer = ClaimConflicts
    claim: Claim


@dataclass(frozen=True)
class ReleaseClaim(Request):
    ask = "release"


@dataclass(frozen=True)
class Ping(Request):
    ask = "ping"
    answer = Alive


@dataclass(frozen=True)
class TakeStackTraces(Request):
    ask = "stacks"
    answer = StackTraces
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PreemptRanks(Request):
    """Have the ranks write a checkpoint and end."""

    ask = "room"
    answer = PreemptedRanks


@dataclass(frozen=True)
class StartContainer(Request):
    ask = "contain"
    answer = ContainerStarted
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class EndAll(Request):
    ask = "end"
    answer = AllEnded


@dataclass(frozen=True)
class WriteFile(Request):
    """A file of the run's folder."""

    ask = "write"
    name: str
    content: str


@dataclass(frozen=True)
class Leave(Request):
    """Give the claim back, and go."""

    ask = "leave"


REQUESTS: dict[str, type[Request]] = {
    one.ask: one
    for one in (TakeClaim, ReleaseClaim, Ping, TakeStackTraces, PreemptRanks, StartContainer, EndAll, WriteFile, Leave)
}


def render_request(question: Request) -> bytes:
    return line({"ask": question.ask, **values.record(question)})


def render_response(question: Request, answer: Response) -> bytes:
    return line({"answer": question.ask, **values.record(answer)})


def line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def parse_request(text: bytes) -> Request:
    """Raises ProtocolError."""
    kind, fields = named(text, "ask")
    return values.read(kind, fields, f"question {kind.ask!r}")


def parse_response(text: bytes) -> tuple[type[Request], Response]:
    """The kind of question, and its answer. Raises ProtocolError: a login shell may greet."""
    kind, fields = named(text, "answer")
    return kind, values.read(kind.answer, fields, f"answer to {kind.ask!r}")


def named(text: bytes, key: str) -> tuple[type[Request], dict[str, Any]]:
    try:
        value = values.loads(text, "a line")
        return REQUESTS[value.pop(key)], value
    except (values.ProtocolError, KeyError, TypeError, AttributeError):
        raise values.ProtocolError(f"{text!r:.80} is no {key}.") from None
