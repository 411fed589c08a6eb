"""Report the progress of a rank to the supervisor: lines on the rank's pipe (protocol/events.py).

A training script may call `report("progress", phase="train", step=3, steps=40, loss=1.2)`.
Without orch (no ORCH_EVENTS_FD in the environment) the call does nothing, so that the script also
works elsewhere. An invalid call never ends the training: it is ignored, and the rank's log and the
end of the run have a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from typing import Any

from orch_node.protocol import events
from orch_node.protocol.events import HEADER, KINDS, SCRIPT_EVENTS, Progress, UnreadableEvent

# A write of at most PIPE_BUF bytes is atomic on a pipe (POSIX write(2)), so lines of several
# processes that share one pipe never mix. Linux: 4096.
PIPE_BUF = 4096
LONGEST_TEXT = 3000
LONGEST_OF_SEVERAL = 800
MOST_COMPLAINTS = 100
PIPE = "ORCH_EVENTS_FD"
NOTED: dict[str, Any] = {}  # the last values passed to `note`
COMPLAINTS: set[str] = set()  # each is printed once
PROGRESS_REPORTED: list[bool] = []  # not empty once the script has reported progress


def encode(event: str, fields: dict[str, Any]) -> bytes:
    """Return an event as a line of at most PIPE_BUF bytes; long texts are cut to their end.

    Raises:
        ValueError: if the line is too long even so.
    """
    rank = int(os.environ.get("RANK", "-1"))
    record = {"event": event, "rank": rank, "time": round(time.time(), 3), **fields}
    if restarted := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        record["restart"] = restarted
    for longest in (LONGEST_TEXT, LONGEST_OF_SEVERAL):
        record = {name: _tail(value, longest) for name, value in record.items()}
        line = json.dumps(record, default=_number_in).encode() + b"\n"
        if len(line) <= PIPE_BUF:
            return line
    raise ValueError(f"event {event!r} needs {len(line)} bytes; at most {PIPE_BUF} fit")


def report(event: str = "", /, **fields: Any) -> None:
    """Send an event: progress, a result, a warning, or one with a name that the script chooses.

    Without a supervisor, do nothing. The function never raises an error: the rank's log has a
    message about an event that cannot be sent.
    """
    name = event or fields.pop(HEADER[0], "")
    if name == Progress.kind:
        PROGRESS_REPORTED[:] = [True]
        note(**{figure: fields[figure] for figure in ("loss", "samples") if figure in fields})
    if os.environ.get(PIPE) is None:
        return
    try:
        if reserved := sorted({*HEADER} & {*fields}):
            _complain(f"{', '.join(reserved)}: orch's own, left out of {name!r:.60}")
        if reason := _report(name, {k: v for k, v in fields.items() if k not in HEADER}):
            _complain(reason)
            send(UnreadableEvent(text=reason))
    except Exception as error:  # such as a closed pipe, which must not end the training
        _complain(_describe_error(error))


def send(event: events.Event) -> None:
    """Send an event of orch itself, with the rank of this process and the present time."""
    _write(encode(event.kind, events.event_fields(event)))


def warn(text: str) -> None:
    """Print a warning of orch to the rank's log, and send it to everyone who follows the run."""
    print(f"warning: {text}", file=sys.stderr)
    send(events.Warned(text=f"warning: {text}"))


def note(**figures: object) -> None:
    """Record the progress of this rank without an event: `step`, its `samples` so far, `loss`.

    A loss may be a tensor; it is read at most once per second (rank/metrics.py).
    """
    NOTED.update(figures)


def _report(name: Any, fields: dict[str, Any]) -> str:
    """Send a script's event; return '' or why it cannot be sent."""
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is not None and kind not in SCRIPT_EVENTS:
        return f"{name} is an event of orch's own; a script's may have any other name"
    try:
        line = encode(name, fields)
        event = events.parse_line(line)
    except Exception as error:  # the methods of a value may raise any type
        return f"{name!r:.60}: {_describe_error(error)}"
    if isinstance(event, UnreadableEvent):
        return event.text
    _write(line)
    return ""


def _describe_error(error: Exception) -> str:
    """Return the type and message of an error as text, also of one whose methods fail."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()[:200]


def _complain(text: str) -> None:
    """Print a message about report() to the rank's log, each message once."""
    if text in COMPLAINTS or len(COMPLAINTS) >= MOST_COMPLAINTS:
        return
    COMPLAINTS.add(text)
    with contextlib.suppress(Exception):  # the script may have closed or replaced stderr
        print(f"orch: report(): {text}", file=sys.stderr, flush=True)


def _write(line: bytes) -> None:
    """Write a line to the pipe of the supervisor, if there is one.

    A launcher's daemon that was killed leaves a broken pipe; the agent of the node reports it.
    """
    fd = os.environ.get(PIPE)
    if fd is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(int(fd), line)


def _number_in(value: Any) -> Any:
    """Return the number in a tensor or a numpy scalar.

    Raises:
        TypeError: if the value is neither.
    """
    item = getattr(value, "item", None)
    number = item() if callable(item) else None
    if isinstance(number, (bool, int, float)):
        return number
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _tail(value: object, limit: int) -> object:
    """Return a value; cut a text to its end so that it fits the limit as JSON."""
    if not isinstance(value, str):
        return value
    # Escapes make a character up to 12 bytes long in JSON, so the limit is on the encoded form.
    while len(json.dumps(value)) > limit:
        value = "..." + value[3 + max(1, len(value) // 8) :]
    return value
