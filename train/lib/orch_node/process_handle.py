"""Signals for one process, and for no other that has its number later.

The kernel's descriptor of a process (pidfd; Linux 5.3, Python 3.9) never names another one. Where
there is none, the process is known by its start (clock ticks since boot), looked at right before.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path


class ProcessHandle:
    """A process that lives now. `start`: when it began, where that is known; if another one has
    the number by now, nothing is ever sent."""

    def __init__(self, pid: int, start: int | None = None) -> None:
        self.pid = pid
        self.descriptor = opened(pid)
        found = started(pid)
        self.start = found if start is None else start
        self.gone = found is None or found != self.start

    def send(self, number: int) -> bool:
        """-> whether the process has got it."""
        if self.gone:
            return False
        try:
            if self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, number)
            elif started(self.pid) != self.start:
                return False
            else:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Forget the process: nothing is sent from here on."""
        self.gone = True
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def send(pid: int, start: int, number: int) -> bool:
    """Signal the process that began then; -> whether it has got it."""
    handle = ProcessHandle(pid, start)
    try:
        return handle.send(number)
    finally:
        handle.close()


def opened(pid: int) -> int | None:
    """None where the kernel or Python has no such thing, or the process is gone."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def started(pid: int) -> int | None:
    """None if there is no such process."""
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
