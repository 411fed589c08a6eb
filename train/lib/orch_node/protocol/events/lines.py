"""Events <-> lines of JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.events.kinds import KINDS, OF_RUN
from orch_node.protocol.events.of_ranks import NO_RANK, Event, Other, UnreadableEvent
from orch_node.protocol.outcome import NodeEnd, Outcome, nodes_record
from orch_node.protocol.outcome import record as outcome_record
from orch_node.protocol.values import ProtocolError

HEADER = ("event", "rank", "time", "restart")
BEGINS = '{"event"'  # all that write events write this first
LONGEST = 1 << 24  # bytes: the end of a run on ten thousand nodes fits
LONGEST_NAME = 100
LONGEST_REASON = 200
MOST_RANKS = 1 << 24
SHAPES: dict[type[Event], tuple[frozenset[str], bool]] = {}  # made once for each kind
LAST_TIME = 253_402_300_799.0  # the year 9999: calendars end there


def parse(line: str | bytes) -> Event | None:
    """None for a line that is no event, LeftOut for an event that cannot be read. Never raises."""
    begin = line.lstrip()[: len(BEGINS)]
    if begin[:1] not in ("{", b"{"):
        return None
    found = understood(line)
    meant = begin in (BEGINS, BEGINS.encode())
    return None if isinstance(found, UnreadableEvent) and not meant else found


def parse_of_rank(line: str | bytes) -> Event | None:
    """The same for a line that comes from ranks: the course of the run is not theirs to tell."""
    event = parse(line)
    if isinstance(event, OF_RUN):
        return UnreadableEvent(event.rank, event.time, text=f"{event.kind} is told by no rank")
    return event


def understood(line: str | bytes) -> Event:
    """An event, or what could not be read of it. Never raises."""
    value: object = None
    try:
        if len(line) > LONGEST:
            raise ProtocolError(f"a line is longer than {LONGEST} bytes")
        value = values.loads(line, "an event")
        return read(value)
    except ProtocolError as error:
        reason = str(error).rstrip(".")[:LONGEST_REASON]
        return UnreadableEvent(rank=rank_of(value), time=time_of(value), text=reason)


def rank_of(value: object) -> int:
    """Whose event it was meant to be."""
    found = value.get("rank") if isinstance(value, dict) else None
    return found if type(found) is int and NO_RANK <= found < MOST_RANKS else NO_RANK


def time_of(value: object) -> float:
    found = value.get("time") if isinstance(value, dict) else None
    known = isinstance(found, (int, float)) and 0 <= found <= LAST_TIME
    return float(found) if known and found else 0.0


def read(record: object) -> Event:
    """An event as JSON has it. Raises ProtocolError."""
    if not isinstance(record, dict):
        raise ProtocolError("an event is an object.")
    name = record.get("event")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or "rank" not in record:
        raise ProtocolError("an event has a name and a rank.")
    kind = KINDS.get(name, Other)
    known, tells_figures = shape(kind)
    own = {key: value for key, value in record.items() if key in known}
    if tells_figures:
        own["figures"] = {k: v for k, v in record.items() if k not in known and k not in HEADER}
    if kind is Other:
        own["name"] = name
    return checked(values.read(kind, own, shown(name)))


def shape(kind: type[Event]) -> tuple[frozenset[str], bool]:
    """The keys that a line of this kind has for itself, and whether all others are figures."""
    if kind not in SHAPES:
        names = {one.name for one in fields(kind)}
        SHAPES[kind] = (frozenset(names - {"figures", "name"}), "figures" in names)
    return SHAPES[kind]


def checked(event: Event) -> Event:
    """Raises ProtocolError for what no rank, and no clock, can be."""
    if not NO_RANK <= event.rank < MOST_RANKS:
        raise ProtocolError(f"{shown(name_of(event))}: rank is {event.rank}, no rank.")
    if not 0 <= event.time <= LAST_TIME:
        raise ProtocolError(f"{shown(name_of(event))}: time is {event.time}, no time.")
    return event


def shown(name: str) -> str:
    return repr(name)[1:-1]


def name_of(event: Event) -> str:
    return event.name if isinstance(event, Other) else event.kind


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
    restart = {"restart": event.restart} if event.restart else {}
    return {**head(name_of(event), event.rank, event.time), **body(event), **restart}


def head(name: str, rank: int, time: float) -> dict[str, Any]:
    """What each line begins with."""
    return {"event": name, "rank": rank, "time": time}


def render(event: Event) -> bytes:
    """A line."""
    return json.dumps(record(event)).encode() + b"\n"
