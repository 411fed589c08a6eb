"""Which cores of this machine are taken: a locked file per agent, and another one that other users can see.

A claim holds as long as the kernel holds the lock, or as long as a process of the run lives: so
nothing has to be given back after a death, and no core is given away under ranks that linger.
The folder may be shared with other machines, so each boot of a kernel has a folder in it.

`node.py usage CLAIMS` prints who uses this node, as one JSON object; CLAIMS is the folder in which the runs of this
user reserve cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from orch_node import atomic_write, machine, permissions
from orch_node.agent.processes import run_processes
from orch_node.protocol import files, values
from orch_node.protocol.agent import Claim
from orch_node.protocol.node_reports import NodeUsage
from orch_node.standalone.facts import read_text

# Locked files that show claims to other users, in a folder in which nobody can replace another user's file.
ANNOUNCEMENTS, PREFIX = Path("/tmp"), "orch-claim-"
MAX_BYTES = 1 << 16


class Claims:
    """The claims of this machine, in a folder that all runs of this user share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / (machine.this_machine().boot or "unknown")
        self.held: int | None = None
        self.announced: IO[str] | None = None

    def take(self, claim: Claim) -> tuple[Claim, ...]:
        """Claim these cores unless a living run has one of them; return one claim for each run in the way.

        Atomic among runs of this user. Other claims of the same run do not conflict.

        Raises:
            UntrustedError: if another user could have written the folder.
            OSError: if it cannot be written.
        """
        self.folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            permissions.check_entry(folder)
        with self.locked():
            conflicts: dict[str, Claim] = {}
            for held in (*self.living(), *claims_of_other_users()):
                if held.run != claim.run and claim.numbers & held.numbers:
                    # Several nodes of a run may be one machine: each of them has a claim.
                    numbers = claim.numbers & (conflicts.get(held.run, held).numbers | held.numbers)
                    conflicts[held.run] = held.with_numbers(numbers)
            if not conflicts and self.held is None:
                self.hold(claim)
            return tuple(conflicts.values())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock without which no process takes or reads claims."""
        with permissions.open_private(self.folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> tuple[Claim, ...]:
        """Return the claims that hold."""
        if not self.folder.is_dir():
            return ()
        with self.locked():
            return tuple(self.living())

    def hold(self, claim: Claim) -> None:
        """Write and lock the file of this agent's claim, and announce it to other users."""
        path = self.path_of(claim.run)
        self.held = permissions.open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.write(self.held, values.render(claim).encode())
        except OSError as error:  # os.write() does not name the file
            raise OSError(error.errno, error.strerror, str(path)) from None
        self.announced = announce(claim)

    def path_of(self, run_id: str) -> Path:
        """Return the file of this agent's claim."""
        return self.folder / f"{run_id}.{os.getpid()}-{id(self)}.json"

    def release(self, run_id: str) -> None:
        """Give the claim back."""
        if self.announced:
            with contextlib.suppress(FileNotFoundError):  # another agent found it without its lock
                self.announced.close()
            self.announced = None
        if self.held is not None:
            self.path_of(run_id).unlink(missing_ok=True)
            os.close(self.held)
            self.held = None

    def living(self) -> Iterator[Claim]:
        """Yield the claims that hold; delete the files of dead ones. For callers with the lock: new files are empty."""
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # it was released meanwhile
                if claim := living_claim(path):
                    yield claim
                else:
                    path.unlink()


def living_claim(path: Path) -> Claim | None:
    """Return the claim of a file if it holds.

    Raises:
        FileNotFoundError: if the claim has been given back.
    """
    with path.open("rb") as file:
        try:
            claim = values.parse(Claim, file.read(), path.name)
        except values.ProtocolError:  # its writer died while it wrote
            claim = Claim(run=path.stem, run_dir="", cpus=())
        if locked(file.fileno()) or (claim.run_dir and run_processes(claim.run_dir)):
            return claim
    return None


def locked(descriptor: int) -> bool:
    """Return whether another process has locked the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def announce(claim: Claim) -> IO[str] | None:
    """Return an open file that shows the claim to other users as long as it is locked, as far as possible."""
    with contextlib.suppress(OSError):
        file = tempfile.NamedTemporaryFile("w", prefix=PREFIX, dir=ANNOUNCEMENTS)  # noqa: SIM115
        os.fchmod(file.fileno(), 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(values.render(replace(claim, run_dir="")))
        file.flush()
        return file
    return None


def claims_of_other_users() -> Iterator[Claim]:
    """Yield what agents of other users have announced on this machine; delete what dead agents of this user have."""
    for path in sorted(ANNOUNCEMENTS.glob(f"{PREFIX}*")):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError, values.ProtocolError), atomic_write.opened(path, flags) as descriptor:
            user, holds = os.fstat(descriptor).st_uid, locked(descriptor)
            if user == os.getuid() and not holds:
                path.unlink()
            elif user != os.getuid() and holds:
                claim = values.parse(Claim, os.read(descriptor, MAX_BYTES), path.name)
                if files.is_run_id(claim.run):
                    yield replace(claim, run=f"{claim.run} (user {permissions.user_name(user)})", run_dir="")


def node_usage(claims: Path) -> NodeUsage:
    """Return the load, the free memory and the runs that have reserved cores of this node."""
    held = [*Claims(claims).read(), *claims_of_other_users()]
    by_run: dict[str, Claim] = {}
    for claim in held:  # several nodes of a run may be one machine
        by_run[claim.run] = claim.with_numbers(claim.numbers | by_run.get(claim.run, claim).numbers)
    return NodeUsage(os.getloadavg()[0], memory_available(), tuple(by_run.values()))


def memory_available() -> int:
    """Return the bytes of memory that new programs can use, as the kernel estimates them (proc(5), MemAvailable)."""
    match = re.search(r"^MemAvailable: *(\d+) kB", read_text(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def main(argv: list[str]) -> None:
    """Print the usage as JSON."""
    print(values.render(node_usage(Path(argv[0]))))
