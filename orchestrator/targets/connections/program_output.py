"""Read the whole output of a program on another machine, within limits of size and time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import LOGIN_SCRIPT_HINT, CommandResult

if TYPE_CHECKING:
    import paramiko

CHUNK = 1 << 20
MAX_OUTPUT_BYTES = 1 << 28  # enough to list a million files
LATE_SECONDS = 1.0  # silence after which the output of an ended program counts as complete
POLL_SECONDS = 0.005
NO_STATUS = -1  # paramiko's exit code of a channel that ended without one


def read_output(channel: paramiko.Channel, node: str, seconds: float) -> CommandResult:
    """Return everything that a program prints until it ends.

    Raises:
        ConnectionLost: if the connection is lost, or the program neither prints nor ends within `seconds`.
        ExecuteError: if the program prints too much or is still printing after `seconds`.
    """
    out, err = bytearray(), bytearray()
    start_time = last_output = time.monotonic()
    while True:
        if channel.recv_ready():
            out += channel.recv(CHUNK)
        elif channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
        elif has_ended(channel, time.monotonic() - last_output):
            break
        else:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - start_time > seconds:
                raise ConnectionLost(f"{node}: no answer for {seconds:.0f} s.")
            continue
        last_output = time.monotonic()
        if len(out) + len(err) > MAX_OUTPUT_BYTES or last_output - start_time > seconds:
            raise ExecuteError(
                f"{node}: the output of the program has no end, and was cut off.", hint=LOGIN_SCRIPT_HINT
            )
    code = channel.recv_exit_status()
    if code == NO_STATUS:  # the connection ended before the program
        raise ConnectionLost(f"{node}: the connection was lost.")
    return CommandResult(code=code, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


def has_ended(channel: paramiko.Channel, quiet_seconds: float) -> bool:
    """Return whether a program has ended and its output has been read.

    Processes that the program has started may hold its output open; they are not waited for.
    """
    output_is_over = channel.closed or channel.eof_received or quiet_seconds > LATE_SECONDS
    return bool(output_is_over) and channel.exit_status_ready()
