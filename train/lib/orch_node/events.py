"""Tells the supervisor how far a rank is: lines on the rank's pipe (protocol/events/).

A training script may call `report("progress", phase="train", step=3, steps=40, loss=1.2)`.
Outside orch (no ORCH_EVENTS_FD in the environment) the call does nothing, so a script that
reports stays an ordinary script.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from orch_node.protocol import events

# A write of at most PIPE_BUF bytes is atomic on a pipe (POSIX write(2)), so lines of several
# processes that share one pipe never mix. Linux: 4096.
PIPE_BUF = 4096
LONGEST_TEXT = 3000
NOTED: dict[str, Any] = {}  # what `note` was told last


def encode(event: str, fields: dict[str, Any]) -> bytes:
    """One event as a line of at most PIPE_BUF bytes; long texts keep their end."""
    kept = {name: _tail(value, LONGEST_TEXT) for name, value in fields.items()}
    rank = int(os.environ.get("RANK", "-1"))
    record = {**events.head(event, rank, round(time.time(), 3)), **kept}
    if restarted := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        record["restart"] = restarted
    line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
    if len(line) > PIPE_BUF:
        record = {name: _tail(value, 800) for name, value in record.items()}
        line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
    if len(line) > PIPE_BUF:
        raise ValueError(f"event {event!r} needs {len(line)} bytes; at most {PIPE_BUF} fit")
    return line


def report(event: str, **fields: object) -> None:
    """Send one event; without a supervisor, do nothing. Raises ValueError if it is too long."""
    if event == events.Progress.kind:
        note(**{name: fields[name] for name in ("loss", "samples") if name in fields})
    _write(event, fields)


def send(event: events.Event) -> None:
    """Send one of orch's own events; its rank and time are those of this process and of now."""
    _write(event.kind, events.body(event))


def note(**figures: object) -> None:
    """Say how far this rank is, without an event: `step`, its own `samples` so far, `loss`.

    A loss may be a tensor; it is read once a second at most (rank/metrics.py).
    """
    NOTED.update(figures)


def _write(event: str, fields: dict[str, Any]) -> None:
    fd = os.environ.get("ORCH_EVENTS_FD")
    if fd is not None:
        os.write(int(fd), encode(event, fields))


def _tail(value: object, limit: int) -> object:
    if not isinstance(value, str):
        return value
    # Escapes make a character up to 12 bytes long in JSON, so the limit is on the encoded form.
    while len(json.dumps(value)) > limit:
        value = "..." + value[3 + max(1, len(value) // 8) :]
    return value
