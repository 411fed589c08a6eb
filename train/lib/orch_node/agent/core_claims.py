"""Which cores of this machine are taken: a locked file per agent, and a name other users can see.

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
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from orch_node import machine, permissions
from orch_node.agent.processes import run_processes
from orch_node.protocol import values
from orch_node.protocol.agent import Claim
from orch_node.protocol.node_reports import NodeUsage
from orch_node.standalone.facts import read_text

# Abstract sockets (unix(7)): every user of the machine sees their names, and they end with their
# process. /proc/net/unix shows the names: user, first CPU, mask of CPUs from it on, run, process.
# Anybody can choose such a name: it counts only if the kernel says that this user listens there.
SOCKET = re.compile(rb"@orch-claim:(\d{1,10}):(\d{1,5}):([0-9a-f]{1,24}):([\w.-]{1,40}):\d{1,10}$", re.ASCII)
CPUS_PER_SOCKET = 96  # 24 digits: a name has at most 107 bytes
CONNECT_SECONDS = 1.0  # an agent accepts connections at once
CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): process, user, group


class Claims:
    """The claims of this machine, in a folder that all runs of this user share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / (machine.this_machine().boot or "unknown")
        self.held: int | None = None
        self.announced: tuple[socket.socket, ...] = ()

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
            conflicts = [
                held.with_numbers(claim.numbers & held.numbers)
                for held in merged((*self.living(), *claims_of_other_users()))
                if held.run != claim.run and claim.numbers & held.numbers
            ]
            if not conflicts and self.held is None:
                self.hold(claim)
            return tuple(conflicts)

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
        self.path = self.folder / f"{claim.run}.{os.getpid()}-{id(self)}.json"
        self.held = permissions.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.write(self.held, values.render(claim).encode())
        except OSError as error:  # os.write() does not name the file
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self.announced = announce(claim)

    def release(self) -> None:
        """Give the claim back."""
        for announcement in self.announced:
            announcement.shutdown(socket.SHUT_RDWR)  # ends accept_connections()
            announcement.close()
        self.announced = ()
        if self.held is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.held)
            self.held = None

    def living(self) -> Iterator[Claim]:
        """Yield the claims that hold; delete the files of dead ones. For callers with the lock: new files are empty."""
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # it may be released meanwhile
                try:
                    claim = values.parse(Claim, file.read(), path.name)
                except values.ProtocolError:  # its writer died while it wrote
                    claim = Claim(run=path.stem, run_dir="", cpus=())
                if locked(file.fileno()) or (claim.run_dir and run_processes(claim.run_dir)):
                    yield claim
                else:
                    path.unlink()


def locked(descriptor: int) -> bool:
    """Return whether another process has locked the file."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True


def announce(claim: Claim) -> tuple[socket.socket, ...]:
    """Return sockets that show the claim to other users, as far as possible."""
    blocks: dict[int, int] = {}  # first CPU -> mask
    for cpu in claim.numbers:
        first = cpu - cpu % CPUS_PER_SOCKET
        blocks[first] = blocks.get(first, 0) | 1 << cpu - first
    announcements: list[socket.socket] = []
    for first, mask in blocks.items():
        name = f"orch-claim:{os.getuid()}:{first}:{mask:x}:{claim.run[:40]}:{os.getpid()}"
        announcement = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            announcement.bind(b"\0" + name.encode())
            announcement.listen()
        except OSError:
            announcement.close()
        else:
            threading.Thread(target=accept_connections, args=(announcement,), daemon=True).start()
            announcements.append(announcement)
    return tuple(announcements)


def accept_connections(announcement: socket.socket) -> None:
    """Close each connection to a socket until the socket is closed."""
    with contextlib.suppress(OSError):
        while True:
            announcement.accept()[0].close()


def listening_user(name: bytes) -> int | None:
    """Return the user whose process listens at an abstract socket; None if nobody accepts connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, contextlib.suppress(OSError):
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(b"\0" + name)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return int(CREDENTIALS.unpack(credentials)[1])
    return None


def claims_of_other_users() -> Iterator[Claim]:
    """Yield what agents of other users have announced on this machine."""
    for line in read_text(Path("/proc/net/unix")).encode().splitlines():
        match = SOCKET.search(line)
        if match and int(match[1]) != os.getuid() and listening_user(match[0][1:]) == int(match[1]):
            first, mask = int(match[2]), int(match[3], 16)
            numbers = {first + bit for bit in range(mask.bit_length()) if mask >> bit & 1}
            run = f"{match[4].decode()} (user {permissions.user_name(int(match[1]))})"
            yield Claim(run=run, run_dir="", cpus=()).with_numbers(numbers)


def merged(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return one claim for each run; several nodes of a run may be one machine."""
    by_run: dict[str, Claim] = {}
    for claim in claims:
        by_run[claim.run] = claim.with_numbers(claim.numbers | by_run.get(claim.run, claim).numbers)
    return tuple(by_run.values())


def node_usage(claims: Path) -> NodeUsage:
    """Return the load, the free memory and the runs that have reserved cores of this node."""
    reserved = merged((*Claims(claims).read(), *claims_of_other_users()))
    # The memory that new programs can use, as the kernel estimates it (proc(5)).
    available = re.search(r"^MemAvailable: *(\d+) kB", read_text(Path("/proc/meminfo")), re.MULTILINE)
    return NodeUsage(os.getloadavg()[0], int(available[1]) * 1024 if available else 0, reserved)


def main(argv: list[str]) -> None:
    """Print the usage as JSON."""
    print(values.render(node_usage(Path(argv[0]))))
