"""Tells the supervisor how far a rank is: lines on the rank's pipe (protocol/events/).

A training script may call `report("progress", phase="train", step=3, steps=40, loss=1.2)`.
Outside orch (no ORCH_EVENTS_FD in the environment) the call does nothing, so a script that
reports stays an ordinary script. A call that is wrong never ends the training: it is left out, and
told in the rank's log and at the end of the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from orch_node.protocol import events
from orch_node.protocol.events import HEADER, KINDS, SCRIPT_EVENTS, Progress, UnreadableEvent

# A write of at most PIPE_BUF bytes is atomic on a pipe (POSIX write(2)), so lines of several
# processes that share one pipe never mix. Linux: 4096.
PIPE_BUF = 4096
LONGEST_TEXT = 3000
MOST_COMPLAINTS = 100
PIPE = "ORCH_EVENTS_FD"
NOTED: dict[str, Any] = {}  # what `note` was told last
COMPLAINTS: set[str] = set()  # each is told once
PROGRESS_REPORTED: list[bool] = []  # not empty once the script has reported progress


def encode(event: str, fields: dict[str, Any]) -> bytes:
    """One event as a line of at most PIPE_BUF bytes; long texts keep their end."""
    kept = {name: _tail(value, LONGEST_TEXT) for name, value in fields.items()}
    rank = int(os.environ.get("RANK", "-1"))
    record = {**events.event_header(event, rank, round(time.time(), 3)), **kept}
    if restarted := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        record["restart"] = restarted
    line = json.dumps(record, default=_number_in).encode() + b"\n"
    if len(line) > PIPE_BUF:
        record = {name: _tail(value, 800) for name, value in record.items()}
        line = json.dumps(record, default=_number_in).encode() + b"\n"
    if len(line) > PIPE_BUF:
        raise ValueError(f"event {event!r} needs {len(line)} bytes; at most {PIPE_BUF} fit")
    return line


def report(event: str = "", /, **fields: Any) -> None:
    """Send one event: progress, result, a warning, or of a name of the script's own. Without a
    supervisor, do nothing. Never raises: what cannot be sent is told in the rank's log."""
    name = event or fields.pop(HEADER[0], "")
    if name == Progress.kind:
        PROGRESS_REPORTED[:] = [True]
        note(**{one: fields[one] for one in ("loss", "samples") if one in fields})
    if os.environ.get(PIPE) is None:
        return
    try:
        if reserved := sorted({*HEADER} & {*fields}):
            _complain(f"{', '.join(reserved)}: orch's own, left out of {name!r:.60}")
        if reason := _report(name, {k: v for k, v in fields.items() if k not in HEADER}):
            _complain(reason)
            send(UnreadableEvent(text=reason))
    except Exception as error:  # a closed pipe: the training is worth more than its progress
        _complain(_words(error))


def send(event: events.Event) -> None:
    """Send one of orch's own events; its rank and time are those of this process and of now."""
    _write(encode(event.kind, events.event_fields(event)))


def warn(text: str) -> None:
    """Print a warning of orch's own to the rank's log, and send it to whoever follows the run."""
    print(f"warning: {text}", file=sys.stderr)
    send(events.Warned(text=f"warning: {text}"))


def note(**figures: object) -> None:
    """Say how far this rank is, without an event: `step`, its own `samples` so far, `loss`.

    A loss may be a tensor; it is read once a second at most (rank/metrics.py).
    """
    NOTED.update(figures)


def _report(name: Any, fields: dict[str, Any]) -> str:
    """-> why it was not sent."""
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is not None and kind not in SCRIPT_EVENTS:
        return f"{name} is an event of orch's own; a script's may have any other name"
    try:
        line = encode(name, fields)
        found = events.parse_line(line)
    except Exception as error:  # of whatever type a value's own methods raise
        return f"{name!r:.60}: {_words(error)}"
    if isinstance(found, UnreadableEvent):
        return found.text
    _write(line)
    return ""


def _words(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _complain(text: str) -> None:
    """Into the rank's log, each once."""
    if text in COMPLAINTS or len(COMPLAINTS) >= MOST_COMPLAINTS:
        return
    COMPLAINTS.add(text)
    try:
        print(f"orch: report(): {text}", file=sys.stderr, flush=True)
    except Exception:  # closed by the script, or another one
        pass


def _write(line: bytes) -> None:
    fd = os.environ.get(PIPE)
    if fd is not None:
        os.write(int(fd), line)


def _number_in(value: Any) -> Any:
    """The number in a tensor, or in one of numpy's."""
    item = getattr(value, "item", None)
    found = item() if callable(item) else None
    if isinstance(found, (bool, int, float)):
        return found
    raise TypeError(f"{type(value).__name__} is no JSON")


def _tail(value: object, limit: int) -> object:
    if not isinstance(value, str):
        return value
    # Escapes make a character up to 12 bytes long in JSON, so the limit is on the encoded form.
    while len(json.dumps(value)) > limit:
        value = "..." + value[3 + max(1, len(value) // 8) :]
    return value
