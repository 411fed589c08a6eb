"""Leases on the folders of a run, so that one supervisor at a time writes them, and the state of that supervisor.

The holder renews the lease as long as it lives. Another run takes it over only if the holder is
known to be dead, or if it has not been renewed for EXPIRE_SECONDS by the clock of the file system.
A holder that has lost its lease ends its ranks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orch_node import machine
from orch_node.machine import ProcessIdentity
from orch_node.protocol import files, outcome, values
from orch_node.protocol.outcome import SupervisorProcess
from orch_node.protocol.values import ProtocolError

CHECK_SECONDS = 2.0
RENEW_SECONDS = 10.0
RECENT_SECONDS = 60.0  # the holder is running; longer than file attributes are cached by NFS
EXPIRE_SECONDS = 120.0  # of a holder that renews it every 10 s
MAX_BYTES = 1 << 14
TRIES = 10
WAIT_SECONDS = 1.0
RUNNING, KILLED, UNKNOWN = "running", "killed", "unknown"  # states of a supervisor


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


class FolderLeases:
    """Leases on the run's folder, and on the folder of the run whose output it continues."""

    def __init__(self, run_dir: Path) -> None:
        """Prepare the leases; acquire() acquires them."""
        holder = Holder(run_id=run_dir.name, process=machine.this_process())
        self.run_dir = run_dir
        self.leases = [Lease(folder, holder) for folder in written_folders(run_dir)]
        self.held: list[Lease] = []
        self.lost: Lease | None = None
        self.reason = ""
        self.stop_checked = time.monotonic()

    def acquire(self, ends: Callable[[], bool], notify: Callable[[str], None]) -> str:
        """Acquire all leases; return '' or why another run keeps its lease.

        Waits while it is unknown whether the holder lives: either it renews its lease, or the
        lease expires.

        Args:
            ends: returns whether to give up waiting.
            notify: called once with the reason for waiting.
        """
        for lease in self.leases:
            renewed, waits = lease.last_renewal(), False
            while refusal := lease.acquire():
                if ends() or lease.is_held_here() or lease.last_renewal() != renewed:
                    return f"{lease.path.parent} is written by {refusal}"
                if not waits:
                    notify(f"waiting: {lease.path.parent} may still be written by {refusal}")
                waits = True
                time.sleep(WAIT_SECONDS)
            self.held.append(lease)
        return ""

    def problem(self) -> str:
        """Return which lease another supervisor has taken over, or ''; renew them otherwise."""
        if self.lost is None:
            for lease in self.held:
                if holder := lease.problem():
                    self.lost = lease
                    self.reason = f"{lease.path.parent} is now written by {holder}"
                    break
        return self.reason

    def lost_run_dir(self) -> bool:
        """Return whether another supervisor writes the files of this run now."""
        return self.lost is not None and self.lost.path.parent == self.run_dir

    def is_stop_requested(self) -> bool:
        """Return whether the file STOP exists; looks every few seconds."""
        now = time.monotonic()
        if now - self.stop_checked < CHECK_SECONDS:
            return False
        self.stop_checked = now
        return (self.run_dir / files.STOP).exists()

    def release(self) -> None:
        """Give all leases back."""
        for lease in self.held:
            lease.release()


def written_folders(run_dir: Path) -> list[Path]:
    """Return the folders of the runs whose files and output a run writes.

    The lease is in the folder of the run that contains the output, because some scripts refuse an
    output folder that is not empty.
    """
    folders = [run_dir]
    for name in (files.RECORD, files.PLAN):
        try:
            value = values.loads((run_dir / name).read_bytes(), name)
        except (OSError, ProtocolError):
            continue
        output = value.get("output_dir") if isinstance(value, dict) else None
        if isinstance(output, str) and output.startswith("/"):
            folders.append(Path(output).parent)
            break
    return list(dict.fromkeys(folders))


def read_supervisor(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor that a run has recorded, or None if there is no readable record."""
    try:
        return outcome.parse_supervisor((run_dir / files.SUPERVISOR).read_bytes())
    except (OSError, ProtocolError):
        return None


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
    if age is None:
        return UNKNOWN
    if renewed and age <= RECENT_SECONDS:
        return RUNNING
    return UNKNOWN if age <= EXPIRE_SECONDS else KILLED


def may_run_elsewhere(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor of a run without an outcome if only another host can see its process.

    Returns None once the lease of the supervisor has expired.
    """
    supervisor = read_supervisor(run_dir)
    if supervisor is None or supervisor.identity is None or (run_dir / files.OUTCOME).exists():
        return None
    if machine.condition_of(supervisor.identity) != machine.UNKNOWN:
        return None
    return None if state_of(run_dir, supervisor) == KILLED else supervisor
