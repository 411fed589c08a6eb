"""The events of a run: one line of JSON each, from its ranks or (rank -1) from the supervisor.

    {"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1", ...}

Ranks may be of another version: a missing field has its default, and an unknown field is dropped.
Events that a script defines itself are `Other`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from orch_node.protocol import values
from orch_node.protocol.outcome import EX_TEMPFAIL, Failure, NodeEnd, is_process
from orch_node.protocol.values import Measured, ProtocolError

NO_RANK = -1
HEADER = ("event", "rank", "time", "restart")
EVENT_PREFIX = '{"event"'  # all programs that write events begin with this
MAX_LINE_BYTES = 1 << 24  # the end of a run on ten thousand nodes fits
MAX_NAME_LENGTH = 100
MAX_REASON_LENGTH = 200
MAX_RANKS = 1 << 24
LAST_TIME = 253_402_300_799.0  # the year 9999, the last that datetime can represent
MAX_REASONS_LENGTH = 500  # of a rank; from then on, reasons are only counted
MAX_SECONDS = 1e9  # a longer estimate comes from a damaged event
KINDS: dict[str, type[Event]] = {}


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

    def __init_subclass__(cls, kind: str = "") -> None:
        """Register a kind of events."""
        cls.kind = kind
        if kind:
            KINDS[kind] = cls


@dataclass(frozen=True)
class TextEvent(Event):
    """An event that a text describes."""

    text: str = ""


@dataclass(frozen=True)
class NodeEvent(TextEvent):
    """An event that a text describes, on a node."""

    node: str | None = None


@dataclass(frozen=True)
class Started(Event, kind="started"):
    """The training process has been started."""

    node: str | None = None
    pid: int = 0
    wrapper: int = 0
    host: str = ""

    @property
    def has_processes(self) -> bool:
        """Return whether signals may be sent to both processes."""
        return is_process(self.pid) and is_process(self.wrapper)


@dataclass(frozen=True)
class Joined(Event, kind="joined"):
    """The rank has joined the process group."""

    node: str | None = None
    pid: int = 0
    cpus: tuple[int, ...] = ()
    threads: int = 0
    backend: str = ""
    torch: str = ""


@dataclass(frozen=True)
class FirstStep(Event, kind="first_step"):
    """The optimizer of the rank has made its first step.

    Attributes:
        torch_seed: the seed of torch's generator.
        new_optimizer: whether the optimizer keeps a state, and had none before the step, as from a checkpoint.
    """

    torch_seed: int = 0
    new_optimizer: bool = False


@dataclass(frozen=True)
class Heartbeat(Event, kind="pulse"):
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
class Progress(Event, kind="progress"):
    """The progress that the script reports; `figures` are its other values."""

    phase: str | None = None
    step: float | None = None
    steps: float | None = None
    loss: Measured | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Event, kind="result"):
    """The figures that the script reports at its end."""

    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preempted(Event, kind="preempted"):
    """The rank has written a checkpoint of this step and ends because of a preemption."""

    step: int = 0


class Unanswered(NodeEvent, kind="unanswered"):
    """The rank cannot write stack traces; the text says why."""


class Raised(TextEvent, kind="exception"):
    """The reason why the rank cannot continue: a traceback, or one line."""


@dataclass(frozen=True)
class ScriptEnded(Event, kind="script_ended"):
    """The rank's script has ended without an error, but its process has not left the group yet.

    The script may also be about to end its process by os._exit(0).

    Attributes:
        world_collectives: collectives of the default group, including the last one.
        groups: as in Heartbeat.
        trained: whether there was a backward pass or an optimizer step.
    """

    world_collectives: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    trained: bool = True


@dataclass(frozen=True)
class Exited(NodeEvent, kind="exit"):
    """The training process has ended.

    Attributes:
        stopped: whether orch ended it.
        text: the last lines of its log.
        oom: what shows that memory ran out, or None.
        finished: False after an exit code 0 that the script itself caused, such as by os._exit(0):
            the process has not left its process group.
        waits: whether the rank's wrapper waits until orch ends the run.
    """

    code: int = 0
    signal: str | None = None
    stopped: bool = False
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


class Warned(TextEvent, kind="warning"):
    """A warning; the run continues."""


@dataclass(frozen=True)
class Decided(TextEvent, kind="decision"):
    """A decision of the ranks for the whole run, with the reason."""

    topic: str = ""  # for example "precision"; empty if only the text is known
    value: str = ""


@dataclass(frozen=True)
class UnreadableEvent(TextEvent, kind="left_out"):
    """Events of the rank that could not be read, with the reasons."""

    count: int = 1


@dataclass(frozen=True)
class Other(Event):
    """An event that the script defines itself."""

    name: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


# Events of the run as a whole, from the supervisor or another program that watches it.


@dataclass(frozen=True)
class Launched(Event, kind="launched"):
    """An attempt has started."""

    attempt: int = 1
    ranks: int = 0
    nodes: tuple[str, ...] = ()


class Waiting(TextEvent, kind="waiting"):
    """The run waits for cores or pods."""


class Refused(TextEvent, kind="refused"):
    """A pod cannot run its part of the run."""


@dataclass(frozen=True)
class Failed(Event, kind="failed"):
    """The failure that caused the end of the attempt."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Stalled(TextEvent, kind="stalled"):
    """No rank makes progress."""

    stands: dict[str, str] = field(default_factory=dict)  # rank -> its position in the script


@dataclass(frozen=True)
class NodesLost(TextEvent, kind="lost"):
    """Nodes that no longer respond."""

    nodes: tuple[str, ...] = ()


class NodeNews(NodeEvent, kind="node"):
    """A message about a node."""


class Stopping(TextEvent, kind="stopping"):
    """The run is asked to end."""


@dataclass(frozen=True)
class Ended(Event, kind="ended"):
    """The result of ending the attempt's processes, per node."""

    nodes: dict[str, NodeEnd] = field(default_factory=dict)


@dataclass(frozen=True)
class Restarting(Event, kind="restarting"):
    """The next attempt will start."""

    attempt: int = 1
    of: int = 0  # how many restarts are allowed
    after: Any = None  # what ended the last attempt


@dataclass(frozen=True)
class Finished(Event, kind="finished"):
    """The run has ended."""

    state: str = ""


RUN_EVENTS = (Launched, Waiting, Refused, Failed, Stalled, NodesLost, NodeNews, Stopping, Ended, Restarting, Finished)
# The keys of each kind; all other keys of some kinds are figures.
FIELDS = {kind: {field.name for field in fields(kind)} - {"figures", "name"} for kind in (*KINDS.values(), Other)}
WITH_FIGURES = (Progress, Result, Other)
# Events that a script may report, in addition to those that it defines.
SCRIPT_EVENTS = (Progress, Result, Warned)
# Events that show progress of a rank.
PROGRESS_EVENTS = (Started, Joined, FirstStep, Heartbeat, Progress, Result, Preempted, ScriptEnded, Exited)


def parse(line: str | bytes) -> Event | None:
    """Return the event in a line, an UnreadableEvent, or None if the line is other text."""
    is_event = line.lstrip()[: len(EVENT_PREFIX)] in (EVENT_PREFIX, EVENT_PREFIX.encode())
    return parse_line(line) if is_event else None


def parse_from_rank(line: str | bytes) -> Event | None:
    """Return parse() of a line that a rank has written; ranks must not report events of the run."""
    event = parse(line)
    if isinstance(event, RUN_EVENTS):
        return UnreadableEvent(event.rank, event.time, text=f"ranks cannot report the event {event.kind}")
    return event


def parse_line(line: str | bytes) -> Event:
    """Return the event in a line, or an UnreadableEvent with the reason."""
    value: object = None
    try:
        if len(line) > MAX_LINE_BYTES:
            raise ProtocolError(f"the line has more than {MAX_LINE_BYTES} bytes")
        value = values.loads(line, "an event")
        return read(value)
    except ProtocolError as error:
        reason = str(error).rstrip(".")[:MAX_REASON_LENGTH]
        rank, time = (value.get("rank"), value.get("time")) if isinstance(value, dict) else (None, None)
        return UnreadableEvent(
            rank=rank if type(rank) is int and NO_RANK <= rank < MAX_RANKS else NO_RANK,
            time=float(time) if isinstance(time, (int, float)) and 0 <= time <= LAST_TIME else 0.0,
            text=reason,
        )


def read(record: Any) -> Event:
    """Return the event in a JSON value.

    Raises:
        ProtocolError: if there is none.
    """
    name = record.get("event") if isinstance(record, dict) and "rank" in record else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ProtocolError("an event must be an object with a name and a rank.")
    kind = KINDS.get(name, Other)
    names = FIELDS[kind]
    content = {key: value for key, value in record.items() if key in names}
    if kind in WITH_FIGURES:
        content["figures"] = {key: value for key, value in record.items() if key not in names and key not in HEADER}
    if kind is Other:
        content["name"] = name
    source = repr(name)[1:-1]  # without control characters
    event = values.read(kind, content, source)
    if not NO_RANK <= event.rank < MAX_RANKS or not 0 <= event.time <= LAST_TIME:
        raise ProtocolError(f"{source}: time {event.time} or rank {event.rank} is impossible.")
    return event


def event_name(event: Event) -> str:
    """Return the name of an event in JSON."""
    return event.name if isinstance(event, Other) else event.kind


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event without its header, for JSON."""
    content = values.record(event)
    figures = content.pop("figures", {})
    return {**{name: value for name, value in content.items() if name not in (*HEADER, "name")}, **figures}


def record(event: Event) -> dict[str, Any]:
    """Return an event for JSON, as read() takes it."""
    restart = {"restart": event.restart} if event.restart else {}
    header = {"event": event_name(event), "rank": event.rank, "time": event.time}
    return {**header, **event_fields(event), **restart}


def render(event: Event) -> bytes:
    """Return an event as a line."""
    return json.dumps(record(event)).encode() + b"\n"


class UnreadableEvents:
    """Unreadable events of a run, as one event for each rank with their number and the first reasons."""

    def __init__(self, events: Iterable[UnreadableEvent] = ()) -> None:
        self.by_rank: dict[int, UnreadableEvent] = {}
        for event in events:
            self.add(event)

    def add(self, event: UnreadableEvent) -> None:
        """Count an event."""
        earlier = self.by_rank.get(event.rank, UnreadableEvent(event.rank, count=0))
        reasons = [earlier.text] if earlier.text else []
        if event.text not in earlier.text and len(earlier.text) < MAX_REASONS_LENGTH:
            reasons.append(event.text)
        count = earlier.count + max(1, event.count)
        self.by_rank[event.rank] = replace(earlier, count=count, text="; ".join(reasons))

    def events(self) -> list[UnreadableEvent]:
        """Return one event for each rank."""
        return [event for _, event in sorted(self.by_rank.items())]


def describe_unreadable(event: UnreadableEvent) -> str:
    """Return how many events of a rank could not be read, and why."""
    source = f"of rank {event.rank}" if event.rank >= 0 else "without a rank"
    return f"note: {event.count} event{'s' * (event.count != 1)} {source} could not be read: {event.text}"


def remaining_seconds(seconds: float, *, first: float, step: float, steps: float) -> float | None:
    """Estimate the seconds until the last step, from the mean time of the steps so far.

    Return None before the first step, after the last one and for impossible values.

    Args:
        seconds: the time since step `first`.
        first: the step that this process began with.
        step: the newest finished step.
        steps: the last step.
    """
    if not first < step < steps or seconds <= 0:
        return None
    remaining = seconds / (step - first) * (steps - step)
    return remaining if remaining < MAX_SECONDS else None


def format_loss(loss: float) -> str:
    """Return a loss with four decimals, or with four digits if it is too small or too large for that."""
    return f"{loss:.4f}" if loss == 0 or 1e-3 <= abs(loss) < 1e6 else f"{loss:.4g}"


def format_seconds(seconds: float) -> str:
    """Return a duration as tqdm shows it: 02:05, or 1:02:05 from an hour on."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}" if hours else f"{minutes:02}:{whole_seconds:02}"
