"""What a rank tells: its wrapper, its training process, its script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch_node.protocol.outcome import EX_TEMPFAIL, is_process
from orch_node.protocol.values import Measured

NO_RANK = -1


@dataclass(frozen=True)
class Event:
    """`restart`: which of torchrun's restarts the rank belongs to. Times are since the epoch."""

    kind: ClassVar[str] = ""
    rank: int = NO_RANK
    time: float = 0.0
    restart: int = 0


@dataclass(frozen=True)
class Started(Event):
    """The training process has been started."""

    kind = "started"
    node: str | None = None
    pid: int = 0
    wrapper: int = 0
    host: str = ""

    @property
    def has_processes(self) -> bool:
        """Whether both are such as may be sent signals."""
        return is_process(self.pid) and is_process(self.wrapper)


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
    loss: Measured | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Event):
    """The figures that the script reports at its end."""

    kind = "result"
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preempted(Event):
    """The checkpoint of this step stands, and the rank ends to make room."""

    kind = "preempted"
    step: int = 0


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
        return bool(self.code or self.signal) and not self.stopped and not self.made_room

    @property
    def made_room(self) -> bool:
        return self.code == EX_TEMPFAIL


@dataclass(frozen=True)
class Warned(Event):
    """What looks wrong, and ends nothing."""

    kind = "warning"
    text: str = ""


@dataclass(frozen=True)
class Decided(Event):
    """What the ranks have decided for all of the run, and why."""

    kind = "decision"
    text: str = ""


@dataclass(frozen=True)
class LeftOut(Event):
    """Events of the rank that could not be read, and why: in the place of them."""

    kind = "left_out"
    count: int = 1
    text: str = ""


@dataclass(frozen=True)
class Other(Event):
    """A kind of the script's own."""

    name: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
