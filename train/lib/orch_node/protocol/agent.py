"""Requests of the supervisor to the agents, and their responses: one line of JSON each.

| kind | the agent | fields of the request | fields of the response |
| --- | --- | --- | --- |
| CLAIM | reserves cores | claim | taken |
| PING | gives a sign of life | | time, preempted, lost_launcher |
| STACKS | collects the stack traces of ranks | ranks | stacks |
| PREEMPT | has the ranks write a checkpoint and end | | ranks |
| CONTAINER | starts the container of the node | cpus | problem, packages |
| END | ends all processes and containers of the run | max_log_bytes | end, logs |
| WRITE | writes a file of the run's folder | name, content | |
| LEAVE | releases the cores and exits | | |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from orch_node.protocol import values
from orch_node.protocol.outcome import NodeEnd
from orch_node.protocol.record import number_ranges

CLAIM, PING, STACKS, PREEMPT = "claim", "ping", "stacks", "preempt"
CONTAINER, END, WRITE, LEAVE = "container", "end", "write", "leave"
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
class RankStack:
    """The stack trace of a rank."""

    stack: str  # as the rank has written it
    kernel: dict[str, str]  # what the kernel reports about its process: wchan, stack, ...


@dataclass(frozen=True)
class Request:
    """A request to an agent."""

    kind: str
    claim: Claim | None = None
    ranks: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    max_log_bytes: int = 0  # of the logs that the response has
    name: str = ""
    content: str = ""


@dataclass(frozen=True)
class Response:
    """The response to a request of this kind.

    Attributes:
        taken: the claims of other runs that conflict with the claim; none if it was accepted.
        time: seconds since the epoch, by the node's own clock.
        preempted: whether the agent received SIGTERM: the job is preempted.
        lost_launcher: which process of the launcher has ended although its ranks continue; '' if none.
        stacks: the stack traces by rank.
        ranks: those that have received the request to write a checkpoint.
        problem: why the container could not be started; '' if it runs.
        packages: the versions of the packages that its ranks import.
        logs: the files of the node's ranks in base64, by name; None if they are too large or not complete.
    """

    kind: str
    taken: tuple[Claim, ...] = ()
    time: float = 0.0
    preempted: bool = False
    lost_launcher: str = ""
    stacks: dict[str, RankStack] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    problem: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    end: NodeEnd | None = None
    logs: dict[str, str] | None = None


@lru_cache(maxsize=1)  # the same request goes to all agents, one after the other
def render_request(request: Request) -> bytes:
    """Return a request as a line."""
    return values.render(request).encode() + b"\n"
