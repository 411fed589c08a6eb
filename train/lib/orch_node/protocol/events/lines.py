"""Convert events to lines of JSON, and back; count the lines that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.events.kinds import KINDS, RUN_EVENTS
from orch_node.protocol.events.rank_events import NO_RANK, Event, Other, UnreadableEvent
from orch_node.protocol.outcome import NodeEnd, Outcome, nodes_record
from orch_node.protocol.outcome import record as outcome_record
from orch_node.protocol.values import ProtocolError

HEADER = ("event", "rank", "time", "restart")
EVENT_PREFIX = '{"event"'  # all programs that write events begin with this
MAX_LINE_BYTES = 1 << 24  # the end of a run on ten thousand nodes fits
MAX_NAME_LENGTH = 100
MAX_REASON_LENGTH = 200
MAX_RANKS = 1 << 24
FIELDS_BY_KIND: dict[type[Event], tuple[frozenset[str], bool]] = {}  # a cache
LAST_TIME = 253_402_300_799.0  # the year 9999, the last that datetime can represent
MAX_REASONS = 3  # of a rank that are reported


def parse(line: str | bytes) -> Event | None:
    """Return the event in a line, an UnreadableEvent, or None if the line is other text."""
    start = line.lstrip()[: len(EVENT_PREFIX)]
    if start[:1] not in ("{", b"{"):
        return None
    event = parse_line(line)
    has_prefix = start in (EVENT_PREFIX, EVENT_PREFIX.encode())
    return None if isinstance(event, UnreadableEvent) and not has_prefix else event


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
        return UnreadableEvent(rank=plausible_rank(value), time=plausible_time(value), text=reason)


def plausible_rank(value: object) -> int:
    """Return the rank of a damaged event, or NO_RANK."""
    rank = value.get("rank") if isinstance(value, dict) else None
    return rank if type(rank) is int and NO_RANK <= rank < MAX_RANKS else NO_RANK


def plausible_time(value: object) -> float:
    """Return the time of a damaged event, or 0."""
    time = value.get("time") if isinstance(value, dict) else None
    return float(time) if isinstance(time, (int, float)) and 0 <= time <= LAST_TIME else 0.0


def read(record: object) -> Event:
    """Return the event in a JSON value.

    Raises:
        ProtocolError: if there is none.
    """
    if not isinstance(record, dict):
        raise ProtocolError("an event must be an object.")
    name = record.get("event")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or "rank" not in record:
        raise ProtocolError("an event must have a name and a rank.")
    kind = KINDS.get(name, Other)
    names, has_figures = fields_of_kind(kind)
    content = {key: value for key, value in record.items() if key in names}
    if has_figures:
        content["figures"] = {key: value for key, value in record.items() if key not in names and key not in HEADER}
    if kind is Other:
        content["name"] = name
    return check_ranges(values.read(kind, content, escape_name(name)))


def fields_of_kind(kind: type[Event]) -> tuple[frozenset[str], bool]:
    """Return the keys of events of this kind, and whether all other keys are figures."""
    if kind not in FIELDS_BY_KIND:
        names = {field.name for field in fields(kind)}
        FIELDS_BY_KIND[kind] = (frozenset(names - {"figures", "name"}), "figures" in names)
    return FIELDS_BY_KIND[kind]


def check_ranges(event: Event) -> Event:
    """Return the event if its rank and time are possible.

    Raises:
        ProtocolError: if not.
    """
    if not NO_RANK <= event.rank < MAX_RANKS:
        raise ProtocolError(f"{escape_name(event_name(event))}: rank {event.rank} is impossible.")
    if not 0 <= event.time <= LAST_TIME:
        raise ProtocolError(f"{escape_name(event_name(event))}: time {event.time} is impossible.")
    return event


def escape_name(name: str) -> str:
    """Return a name without control characters."""
    return repr(name)[1:-1]


def event_name(event: Event) -> str:
    """Return the name of an event in JSON."""
    return event.name if isinstance(event, Other) else event.kind


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event without its header, for JSON."""
    content = {field.name: getattr(event, field.name) for field in fields(event)}
    figures = content.get("figures", {})
    names = [name for name in content if name not in (*HEADER, "name", "figures")]
    return {**{name: to_json(content[name]) for name in names}, **figures}


def to_json(value: Any) -> Any:
    """Return a field for JSON."""
    if isinstance(value, Outcome):
        return outcome_record(value)
    if isinstance(value, dict) and any(isinstance(end, NodeEnd) for end in value.values()):
        return nodes_record(value)
    return values.record(value)


def record(event: Event) -> dict[str, Any]:
    """Return an event for JSON, as read() takes it."""
    restart = {"restart": event.restart} if event.restart else {}
    return {**event_header(event_name(event), event.rank, event.time), **event_fields(event), **restart}


def event_header(name: str, rank: int, time: float) -> dict[str, Any]:
    """Return the first keys of each event."""
    return {"event": name, "rank": rank, "time": time}


def render(event: Event) -> bytes:
    """Return an event as a line."""
    return json.dumps(record(event)).encode() + b"\n"


class UnreadableEvents:
    """Unreadable events of a run.

    Attributes:
        counts: the number of events of each rank.
        reasons: the first MAX_REASONS reasons of each rank, and one more if there are others.
    """

    def __init__(self, events: Iterable[UnreadableEvent] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.reasons: dict[int, list[str]] = {}
        for event in events:
            self.add(event)

    def add(self, event: UnreadableEvent) -> None:
        """Count an event."""
        self.counts[event.rank] = self.counts.get(event.rank, 0) + max(1, event.count)
        reasons = self.reasons.setdefault(event.rank, [])
        if event.text not in reasons and len(reasons) <= MAX_REASONS:
            reasons.append(event.text)

    def events(self) -> Iterator[UnreadableEvent]:
        """Yield one event for each rank."""
        for rank in sorted(self.counts):
            yield UnreadableEvent(rank=rank, count=self.counts[rank], text=self.reason(rank))

    def reason(self, rank: int) -> str:
        """Return the first reasons of a rank."""
        reasons = self.reasons[rank]
        return "; ".join([*reasons[:MAX_REASONS], *(["and others"] if len(reasons) > MAX_REASONS else [])])

    def describe_all(self) -> list[str]:
        """Return a line for each rank."""
        return [describe_unreadable(event) for event in self.events()]


def describe_unreadable(event: UnreadableEvent) -> str:
    """Return how many events of a rank could not be read, and why."""
    count = "1 event" if event.count == 1 else f"{event.count} events"
    source = f"of rank {event.rank}" if event.rank >= 0 else "without a rank"
    return f"note: {count} {source} could not be read: {event.text}"
