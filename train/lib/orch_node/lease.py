"""The lease on the folder of a run, so that one supervisor at a time writes it, and the state of that supervisor.

A supervisor takes the lease over from an earlier one of its run, and renews it as long as it lives. One that has lost
its lease ends its ranks. Other hosts see by the age of the lease whether its supervisor lives.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from orch_node import atomic_write, machine
from orch_node.machine import ProcessIdentity
from orch_node.protocol import files, outcome, values
from orch_node.protocol.outcome import SupervisorProcess
from orch_node.protocol.values import ProtocolError

CHECK_SECONDS = 2.0
RENEW_SECONDS = 10.0
RECENT_SECONDS = 60.0  # the holder is running; longer than file attributes are cached by NFS
EXPIRE_SECONDS = 120.0  # of a holder that renews it every 10 s
RUNNING, KILLED, UNKNOWN = "running", "killed", "unknown"  # states of a supervisor


class Lease:
    """The lease of a process on the folder of its run."""

    def __init__(self, run_dir: Path, process: ProcessIdentity) -> None:
        """Take the lease, also from an earlier process: who starts a run again has given up the earlier start.

        Raises:
            OSError: if the folder cannot be written.
        """
        self.run_dir = run_dir
        self.path = run_dir / files.LEASE
        self.content = values.render(process) + "\n"
        self.lost = ""  # which process has taken the lease over
        self.is_stop_requested = False  # whether the file STOP exists
        self.checked = self.renewed = time.monotonic()
        atomic_write.write(self.path, self.content)

    def problem(self) -> str:
        """Renew the lease and look for the file STOP, both rarely; return which process has taken it over, or ''."""
        now = time.monotonic()
        if self.lost or now - self.checked < CHECK_SECONDS:
            return self.lost
        self.checked = now
        self.is_stop_requested = (self.run_dir / files.STOP).exists()
        with contextlib.suppress(OSError):  # the file system is away; the next check shows who came first
            content = read(self.path)
            if content is None:
                atomic_write.write(self.path, self.content)
            elif content != self.content:
                self.lost = f"{self.run_dir} is now written by {describe_holder(content)}"
            elif now - self.renewed >= RENEW_SECONDS:
                os.utime(self.path)
                self.renewed = now
        return self.lost

    def release(self) -> None:
        """Give the lease back if it is still held."""
        with contextlib.suppress(OSError):
            if read(self.path) == self.content:
                self.path.unlink()


def read(path: Path) -> str | None:
    """Return the content of a lease, or None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return atomic_write.read(path).decode(errors="replace")
    return None


def describe_holder(content: str) -> str:
    """Return the process that a lease names."""
    with contextlib.suppress(ProtocolError):
        return values.parse(ProcessIdentity, content, files.LEASE, ignore_unknown=True).describe()
    return "another process"


def seconds_since_renewal(path: Path) -> float | None:
    """Return the age of a file in seconds by the clock of its file system.

    Returns:
        None if the clock cannot be read, as through a read-only mount, or if there is no such file.
    """
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix=".lease-", dir=path.parent) as probe:
        return max(0.0, os.fstat(probe.fileno()).st_mtime - path.stat().st_mtime)
    return None


def read_supervisor(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor that a run has recorded, or None if there is no readable record."""
    return values.load(outcome.parse_supervisor, run_dir / files.SUPERVISOR)


def state_of(run_dir: Path, supervisor: SupervisorProcess) -> str:
    """Return whether a run without an outcome is RUNNING, KILLED, or UNKNOWN here.

    A supervisor on another host, or in another container, is running if it has renewed its lease
    recently, and gone if it has not for a long time. If the age of the lease cannot be measured,
    as through a read-only mount, its state is unknown.
    """
    if supervisor.identity is None:  # it was ended before it could record its identity
        return KILLED
    condition = machine.condition_of(supervisor.identity)
    if condition != machine.UNKNOWN:
        return RUNNING if condition == machine.ALIVE else KILLED
    path = run_dir / files.LEASE
    renewed = path.exists()
    age = seconds_since_renewal(path if renewed else run_dir / files.SUPERVISOR)
    if age is None or age > EXPIRE_SECONDS:
        return UNKNOWN if age is None else KILLED
    return RUNNING if renewed and age <= RECENT_SECONDS else UNKNOWN


def may_run_elsewhere(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor of a run without an outcome if only another host can see its process.

    Returns None once the lease of the supervisor has expired.
    """
    supervisor = read_supervisor(run_dir)
    if supervisor is None or supervisor.identity is None or (run_dir / files.OUTCOME).exists():
        return None
    is_elsewhere = machine.condition_of(supervisor.identity) == machine.UNKNOWN
    return supervisor if is_elsewhere and state_of(run_dir, supervisor) != KILLED else None
