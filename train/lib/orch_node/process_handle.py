"""Send signals to a process, and never to a later process with the same number.

A pidfd (Linux 5.3, Python 3.9) always refers to the same process. Without one, the start
time of the process (clock ticks since boot) is compared right before a signal is sent.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path


class ProcessHandle:
    """A process that signals are sent to."""

    def __init__(self, pid: int, start: int | None = None) -> None:
        """Open a process.

        Args:
            pid: its number.
            start: its start time. If another process has the number, no signal is sent.
        """
        self.pid = pid
        self.descriptor = open_pidfd(pid)
        current_start = start_time(pid)
        self.start = current_start if start is None else start
        self.gone = current_start is None or current_start != self.start

    def send(self, number: int) -> bool:
        """Send a signal; return whether the process received it."""
        if self.gone:
            return False
        try:
            if self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, number)
            elif start_time(self.pid) != self.start:
                return False
            else:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Close the descriptor; no signal is sent afterwards."""
        self.gone = True
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def send(pid: int, start: int, number: int) -> bool:
    """Send a signal to the process with this start time; return whether it received it."""
    handle = ProcessHandle(pid, start)
    try:
        return handle.send(number)
    finally:
        handle.close()


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None if it is not supported or the process has ended."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """Return the start time of a process, or None if there is none."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process with this start time exists and is not a zombie."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return False
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) == start and fields[0] not in "ZX"
