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
    """The counts of a rank's operations and steps, and the size of its log, sent when one grows.

    Attributes:
        collectives: of all groups.
        world_collectives: of the default group, in which every rank takes part.
        point_to_point: sends and receives.
    """

    kind = "pulse"
    collectives: int = 0
    world_collectives: int = 0
    point_to_point: int = 0
    steps: int = 0
    log: int = 0


STEPS_PER_SECOND = "steps_per_second"  # a figure of the progress that orch counts itself


@dataclass(frozen=True)
class ScriptEnded(Event):
    """The rank's script has ended well; the process still has to leave the group.

    Attributes:
        world_collectives: of the default group, the last one included.
        trained: a backward pass or an optimizer step was seen.
    """

    kind = "script_ended"
    world_collectives: int = 0
    trained: bool = True


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
        return bool(self.code or self.signal) and not self.stopped and not self.preempted

    @property
    def preempted(self) -> bool:
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
    topic: str = ""  # for example "precision"; empty if only the text is known
    value: str = ""


@dataclass(frozen=True)
class UnreadableEvent(Event):
    """Events of the rank that could not be read, and why: in the place of them."""

    kind = "left_out"
    count: int = 1
    text: str = ""


@dataclass(frozen=True)
class Other(Event):
    """A kind of the script's own."""

    name: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
