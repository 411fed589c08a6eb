"""A lease on a folder: one supervisor at a time writes a run's results, on whichever host it is.

The holder renews the lease as long as it lives. Another run takes it over only if the holder is
known to be dead, or if it has not been renewed for EXPIRE_SECONDS by the clock of the file system.
A holder that has lost its lease ends its ranks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from orch_node import machine
from orch_node.machine import ProcessIdentity
from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

CHECK_SECONDS = 2.0
RENEW_SECONDS = 10.0
RECENT_SECONDS = 60.0  # the holder is running; longer than file attributes are cached by NFS
EXPIRE_SECONDS = 120.0  # of a holder that renews it every 10 s
MAX_BYTES = 1 << 14
TRIES = 10


@dataclass(frozen=True)
class Holder:
    """The run that holds a lease, and its supervisor."""

    run_id: str
    process: ProcessIdentity

    def describe(self) -> str:
        """Return the run and its process as text."""
        return f"{self.run_id} ({self.process.describe()})"


class Lease:
    """A lease of this process on a folder."""

    def __init__(self, folder: Path, holder: Holder) -> None:
        """Prepare a lease without acquiring it."""
        self.path = folder / files.LEASE
        self.holder = holder
        self.content = values.render(holder) + "\n"
        self.checked = self.renewed = time.monotonic()

    def acquire(self) -> str:
        """Acquire the lease; return '' or who holds it.

        An earlier process of the same run gives way: a batch system restarts a job only after it
        has given up the earlier one.

        Raises:
            OSError: if the folder cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(TRIES):
            if self.create():
                return ""
            content = read(self.path)
            if content is None:
                continue
            if refusal := self.refusal(content):
                return refusal
            self.remove(content)
        return "other processes that start at the same time"

    def last_renewal(self) -> float | None:
        """Return the time of the last renewal by the file system's clock, or None."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def is_held_here(self) -> bool:
        """Return whether a process of this machine that is known to live holds the lease."""
        holder = parse(read(self.path) or "")
        return holder is not None and machine.condition_of(holder.process) == machine.ALIVE

    def create(self) -> bool:
        """Write the lease unless there is one; return whether it was written.

        Raises:
            OSError: if it cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "w") as file:
                file.write(self.content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            # On a full volume. The holder, too, would take an empty lease for that of another process.
            self.path.unlink(missing_ok=True)
            raise
        return True

    def refusal(self, content: str) -> str:
        """Return who holds a lease with this content, or '' if it can be taken over."""
        holder = parse(content)
        if holder is not None:
            if holder.run_id == self.holder.run_id:
                return ""
            condition = machine.condition_of(holder.process)
            if condition == machine.DEAD:
                return ""
            if condition == machine.ALIVE:
                return holder.describe()
        age = seconds_since_renewal(self.path)
        if age is not None and age > EXPIRE_SECONDS:
            return ""
        return holder.describe() if holder else "a process whose lease cannot be read"

    def remove(self, content: str) -> None:
        """Remove the lease unless its content has changed in the meantime."""
        aside = Path(tempfile.mkdtemp(prefix=".lease-", dir=self.path.parent)) / "old"
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(aside)
            if read(aside) != content:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self.path)
            aside.unlink()
        aside.parent.rmdir()

    def problem(self) -> str:
        """Renew the lease from time to time; return who has taken it over, or ''."""
        now = time.monotonic()
        if now - self.checked < CHECK_SECONDS:
            return ""
        self.checked = now
        try:
            content = read(self.path)
            if content is None and self.create():  # a script may delete its output folder
                return ""
            if content not in (None, self.content):
                holder = parse(content or "")
                return holder.describe() if holder else "another process"
            if now - self.renewed >= RENEW_SECONDS:
                os.utime(self.path)
                self.renewed = now
        except OSError:  # the file system is away; the next check shows who came first
            pass
        return ""

    def release(self) -> None:
        """Give the lease back if it is still held."""
        with contextlib.suppress(OSError):
            if read(self.path) == self.content:
                self.path.unlink()


def read(path: Path) -> str | None:
    """Return the content of a lease, or None if there is none.

    Raises:
        OSError: if it cannot be read, or is a symbolic link.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with open(os.open(path, flags), encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None


def parse(content: str) -> Holder | None:
    """Return the holder that a lease names, or None if it cannot be read."""
    try:
        return values.parse_known(Holder, content, files.LEASE)
    except ProtocolError:
        return None


def seconds_since_renewal(path: Path) -> float | None:
    """Return the age of a file in seconds by the clock of its file system.

    Returns:
        None if the clock cannot be read, as through a read-only mount, or if there is no such file.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix=".lease-", dir=path.parent) as probe:
            return max(0.0, os.fstat(probe.fileno()).st_mtime - path.stat().st_mtime)
    except OSError:
        return None
