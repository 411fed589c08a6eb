"""What a program on another machine prints, to its end and not beyond measure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import LOGIN_SCRIPT_HINT, CommandResult

if TYPE_CHECKING:
    import paramiko

CHUNK = 1 << 20
LARGEST_ANSWER = 1 << 28  # bytes of a program's output: the list of a million files
LATE_SECONDS = 1.0  # for output that comes after the end of its program
POLL_SECONDS = 0.005
NO_STATUS = -1  # paramiko's word for a channel that ended without an exit code


def gathered(channel: paramiko.Channel, node: str, seconds: float) -> CommandResult:
    """All that a program prints until it has ended. Raises ExecuteError for one that goes on."""
    out, err = bytearray(), bytearray()
    began = heard = time.monotonic()
    while True:
        if channel.recv_ready():
            out += channel.recv(CHUNK)
        elif channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
        elif has_ended(channel, time.monotonic() - heard):
            break
        else:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - began > seconds:
                raise ConnectionLost(f"{node}: no answer for {seconds:.0f} s.")
            continue
        heard = time.monotonic()
        if len(out) + len(err) > LARGEST_ANSWER or heard - began > seconds:
            raise ExecuteError(f"{node}: its answer has no end, and was cut off.", hint=LOGIN_SCRIPT_HINT)
    code = channel.recv_exit_status()
    if code == NO_STATUS:  # the connection ended, not the program
        raise ConnectionLost(f"{node}: the connection was lost.")
    return CommandResult(code=code, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


def has_ended(channel: paramiko.Channel, quiet: float) -> bool:
    """What the program has started may hold its output open: nobody waits for that."""
    over = channel.closed or channel.eof_received or quiet > LATE_SECONDS
    return bool(over) and channel.exit_status_ready()
