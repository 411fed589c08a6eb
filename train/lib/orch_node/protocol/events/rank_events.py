"""Events of a rank: from its wrapper, its training process and its script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from orch_node.protocol.outcome import EX_TEMPFAIL, is_process
from orch_node.protocol.values import Measured

NO_RANK = -1


@dataclass(frozen=True)
class Event:
    """An event of a run.

    Attributes:
        kind: the name of the event in JSON.
        time: seconds since the epoch.
        restart: which of torchrun's restarts the rank belongs to.
    """

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
        """Return whether signals may be sent to both processes."""
        return is_process(self.pid) and is_process(self.wrapper)


@dataclass(frozen=True)
class Joined(Event):
    """The rank has joined the process group."""

    kind = "joined"
    node: str | None = None
    pid: int = 0
    cpus: tuple[int, ...] = ()
    threads: int = 0
    backend: str = ""
    torch: str = ""


@dataclass(frozen=True)
class FirstStep(Event):
    """The optimizer of the rank has made its first step."""

    kind = "first_step"
    torch_seed: int = 0


@dataclass(frozen=True)
class Heartbeat(Event):
    """The counts of a rank's operations and steps and the size of its log, sent when one grows.

    Attributes:
        collectives: collectives of all groups.
        world_collectives: collectives of the default group, in which every rank takes part.
        groups: collectives of each group that the script has created, by a key that is the same on
            all ranks of the group.
        point_to_point: sends, receives and remote procedure calls.
        idle: whether the rank has used almost no CPU time since a count grew.
        leaving: whether only the exit handlers of C++ libraries remain, which may finalize MPI.
    """

    kind = "pulse"
    collectives: int = 0
    world_collectives: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    point_to_point: int = 0
    steps: int = 0
    log: int = 0
    idle: bool = False
    leaving: bool = False


STEPS_PER_SECOND = "steps_per_second"  # a figure of progress events that orch adds


@dataclass(frozen=True)
class ScriptEnded(Event):
    """The rank's script has ended without an error, but its process has not left the group yet.

    The script may also be about to end its process by os._exit(0).

    Attributes:
        world_collectives: collectives of the default group, including the last one.
        groups: as in Heartbeat.
        trained: whether there was a backward pass or an optimizer step.
    """

    kind = "script_ended"
    world_collectives: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    trained: bool = True


@dataclass(frozen=True)
class Progress(Event):
    """The progress that the script reports; `figures` are its other values."""

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
    """The rank has written a checkpoint of this step and ends because of a preemption."""

    kind = "preempted"
    step: int = 0


@dataclass(frozen=True)
class Unanswered(Event):
    """The rank cannot write stack traces; the text says why."""

    kind = "unanswered"
    node: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Raised(Event):
    """The reason why the rank cannot continue: a traceback, or one line."""

    kind = "exception"
    text: str = ""


@dataclass(frozen=True)
class Exited(Event):
    """The training process has ended.

    Attributes:
        stopped: whether orch ended it.
        text: the last lines of its log.
        oom: what shows that memory ran out, or None.
        finished: False after an exit code 0 that the script itself caused, such as by os._exit(0):
            the process has not left its process group.
        waits: whether the rank's wrapper waits until orch ends the run.
    """

    kind = "exit"
    node: str | None = None
    code: int = 0
    signal: str | None = None
    stopped: bool = False
    text: str = ""
    oom: str | None = None
    finished: bool = True
    waits: bool = False
    max_rss_bytes: int = 0
    cpu_seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Return whether the rank failed."""
        return bool(self.code or self.signal) and not self.stopped and not self.preempted

    @property
    def preempted(self) -> bool:
        """Return whether the rank ended because of a preemption."""
        return self.code == EX_TEMPFAIL


NAN_LOSS = "the loss has been NaN"  # part of a warning


@dataclass(frozen=True)
class Warned(Event):
    """A warning; the run continues."""

    kind = "warning"
    text: str = ""


@dataclass(frozen=True)
class Decided(Event):
    """A decision of the ranks for the whole run, with the reason."""

    kind = "decision"
    text: str = ""
    topic: str = ""  # for example "precision"; empty if only the text is known
    value: str = ""


@dataclass(frozen=True)
class UnreadableEvent(Event):
    """Events of the rank that could not be read, with the reasons."""

    kind = "left_out"
    count: int = 1
    text: str = ""


@dataclass(frozen=True)
class Other(Event):
    """An event that the script defines itself."""

    name: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
