"""Requests of the supervisor to the agents, and their responses: one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from orch_node.protocol import values
from orch_node.protocol.outcome import NodeEnd
from orch_node.protocol.record import number_ranges

FIRST_GPU = 96_000  # the number of GPU 0 among the numbers of CPUs and GPUs


@dataclass(frozen=True)
class Claim:
    """The cores and GPUs of a node that a run uses."""

    run: str
    run_dir: str
    cpus: tuple[int, ...]
    gpus: tuple[int, ...] = ()

    @property
    def numbers(self) -> frozenset[int]:
        """Return the numbers of the CPUs and of the GPUs, which differ."""
        return frozenset((*self.cpus, *(FIRST_GPU + gpu for gpu in self.gpus)))

    def with_numbers(self, numbers: Iterable[int]) -> Claim:
        """Return the claim of the same run on the CPUs and GPUs with these numbers."""
        cpus = tuple(sorted(number for number in numbers if number < FIRST_GPU))
        gpus = tuple(sorted(number - FIRST_GPU for number in numbers if number >= FIRST_GPU))
        return replace(self, cpus=cpus, gpus=gpus)

    def describe(self) -> str:
        kinds = (("cores", self.cpus), ("GPUs", self.gpus))
        return " and ".join(f"{kind} {number_ranges(numbers)}" for kind, numbers in kinds if numbers)


@dataclass(frozen=True)
class Response:
    """A response without data: the request was handled."""


@dataclass(frozen=True)
class ClaimConflicts(Response):
    """The claims of other runs that conflict with a claim; none if it was accepted."""

    taken: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Alive(Response):
    """A sign of life.

    Attributes:
        time: seconds since the epoch, by the node's own clock.
        preempted: whether the agent received SIGTERM: the job is preempted.
        lost_launcher: which process of the launcher has ended although its ranks continue; '' if none.
    """

    time: float = 0.0
    preempted: bool = False
    lost_launcher: str = ""


@dataclass(frozen=True)
class RankStack:
    """The stack trace of a rank."""

    stack: str  # as the rank has written it
    kernel: dict[str, str]  # what the kernel reports about its process: wchan, stack, ...


@dataclass(frozen=True)
class StackTraces(Response):
    """The stack traces of ranks, by rank."""

    ranks: dict[str, RankStack] = field(default_factory=dict)


@dataclass(frozen=True)
class PreemptedRanks(Response):
    """The ranks that have received the request to write a checkpoint."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContainerStarted(Response):
    """The result of starting the container of the node."""

    problem: str | None = None  # why it could not be started; None if it runs
    packages: dict[str, str] = field(default_factory=dict)  # the versions that its ranks import


@dataclass(frozen=True)
class AllEnded(Response):
    """The result of ending the run's processes and containers on a node.

    Attributes:
        logs: the files of the node's ranks in base64, by name; None if they are too large or not complete.
    """

    end: NodeEnd = field(default_factory=NodeEnd)
    logs: dict[str, str] | None = None


@dataclass(frozen=True)
class Request:
    """A request to an agent.

    Attributes:
        kind: the name of the request in JSON.
        response: the type of the response.
    """

    kind: ClassVar[str] = ""
    response: ClassVar[type[Response]] = Response


@dataclass(frozen=True)
class TakeClaim(Request):
    """Reserve cores."""

    kind = "claim"
    response = ClaimConflicts
    claim: Claim


@dataclass(frozen=True)
class Ping(Request):
    """Ask for a sign of life."""

    kind = "ping"
    response = Alive


@dataclass(frozen=True)
class TakeStackTraces(Request):
    """Collect the stack traces of ranks."""

    kind = "stacks"
    response = StackTraces
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PreemptRanks(Request):
    """Have the ranks write a checkpoint and end."""

    kind = "room"
    response = PreemptedRanks


@dataclass(frozen=True)
class StartContainer(Request):
    """Start the container of the node."""

    kind = "contain"
    response = ContainerStarted
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class EndAll(Request):
    """End all processes of the run."""

    kind = "end"
    response = AllEnded
    max_log_bytes: int = 0  # of the logs that the response has


@dataclass(frozen=True)
class WriteFile(Request):
    """Write a file of the run's folder."""

    kind = "write"
    name: str
    content: str


@dataclass(frozen=True)
class Leave(Request):
    """Release the cores and exit."""

    kind = "leave"


REQUESTS: dict[str, type[Request]] = {request.kind: request for request in Request.__subclasses__()}


@lru_cache(maxsize=1)  # the same request goes to all agents, one after the other
def render_request(request: Request) -> bytes:
    """Return a request as a line."""
    return line({"ask": request.kind, **values.record(request)})


def render_response(request: Request, response: Response) -> bytes:
    """Return the response to a request as a line."""
    return line({"answer": request.kind, **values.record(response)})


def line(value: dict[str, Any]) -> bytes:
    """Return a JSON object as a line."""
    return json.dumps(value).encode() + b"\n"


def parse_request(text: bytes) -> Request:
    """Return the request in a line.

    Raises:
        ProtocolError: if there is none.
    """
    kind, fields = parse_kind(text, "ask")
    return values.read(kind, fields, f"request {kind.kind!r}")


def parse_response(text: bytes) -> tuple[type[Request], Response]:
    """Return the kind of request, and the response in a line.

    Raises:
        ProtocolError: if there is none, as in the greeting of a login shell.
    """
    kind, fields = parse_kind(text, "answer")
    return kind, values.read(kind.response, fields, f"response to {kind.kind!r}")


def parse_kind(text: bytes, key: str) -> tuple[type[Request], dict[str, Any]]:
    """Return the type of the request that a line has under this key, and the remaining fields.

    Raises:
        ProtocolError: if the line has no request.
    """
    try:
        value = values.loads(text, "a line")
        return REQUESTS[value.pop(key)], value
    except (values.ProtocolError, KeyError, TypeError, AttributeError):
        raise values.ProtocolError(f"{text!r:.80} is not a message with the key {key!r}.") from None
