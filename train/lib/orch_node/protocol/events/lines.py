"""Events <-> lines of JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.events.kinds import KINDS
from orch_node.protocol.events.of_ranks import Event, Other
from orch_node.protocol.outcome import NodeEnd, Outcome, nodes_record
from orch_node.protocol.outcome import record as outcome_record

HEADER = ("event", "rank", "time", "restart")


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
    restart = {"restart": event.restart} if event.restart else {}
    return {**head(name, event.rank, event.time), **body(event), **restart}


def head(name: str, rank: int, time: float) -> dict[str, Any]:
    """What each line begins with."""
    return {"event": name, "rank": rank, "time": time}


def render(event: Event) -> bytes:
    """A line."""
    return json.dumps(record(event)).encode() + b"\n"
