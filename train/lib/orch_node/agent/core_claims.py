"""Which cores of this machine are taken: a locked file per agent, and a name other users can see.

A claim holds as long as the kernel holds the lock, or as long as a process of the run lives: so
nothing has to be given back after a death, and no core is given away under ranks that linger.
The folder may be shared with other machines, so each boot of a kernel has a folder in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orch_node import machine, trust
from orch_node.agent.processes import of_run
from orch_node.protocol import values
from orch_node.protocol.agent import Claim

# An abstract socket (unix(7)): every user of the machine sees its name, and it ends with its
# process. /proc/net/unix shows the names.
SOCKET = re.compile(rb"@orch-claim:(\d{1,10}):([0-9a-f]{1,48}):([\w.-]{1,40}):\d{1,10}$", re.ASCII)
MAX_NAME = 107  # bytes of a socket's name


class Claims:
    """The claims of this machine, in a folder that all runs of this user share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / (machine.this_machine().boot or "unknown")
        self.held: int | None = None
        self.announced: int | None = None

    def take(self, claim: Claim) -> tuple[Claim, ...]:
        """Claim these cores unless a living run has one of them; return the claims in the way.

        Atomic among runs of this user. Other claims of the same run do not conflict.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with trust.open_private(self.folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            requested = set(claim.cpus)
            conflicts = tuple(
                replace(held, cpus=tuple(sorted(requested & set(held.cpus))))
                for held in (*self.living(), *claims_of_other_users())
                if held.run != claim.run and requested & set(held.cpus)
            )
            if not conflicts and self.held is None:
                self.hold(claim)
            return conflicts

    def hold(self, claim: Claim) -> None:
        """Write and lock the file of this agent's claim, and announce it to other users."""
        self.held = trust.open_file(self.path_of(claim.run), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self.held, json.dumps(values.record(claim)).encode())
        self.announced = announce(claim)

    def path_of(self, run_id: str) -> Path:
        """Return the file of this agent's claim."""
        return self.folder / f"{run_id}.{os.getpid()}-{id(self)}.json"

    def release(self, run_id: str) -> None:
        """Give the claim back."""
        if self.announced is not None:
            os.close(self.announced)
            self.announced = None
        if self.held is not None:
            self.path_of(run_id).unlink(missing_ok=True)
            os.close(self.held)
            self.held = None

    def living(self) -> Iterator[Claim]:
        """Yield the claims that hold; delete the files of dead ones."""
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
        if locked(file.fileno()) or (claim.run_dir and of_run(claim.run_dir)):
            return claim
    return None


def locked(descriptor: int) -> bool:
    """Return whether another process has locked the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def announce(claim: Claim) -> int | None:
    """Return the descriptor of a socket that shows the claim to other users, or None."""
    mask = f"{sum(1 << cpu for cpu in set(claim.cpus)):x}"
    name = f"orch-claim:{os.getuid()}:{mask}:{claim.run[:40]}:{os.getpid()}"
    announcement = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        announcement.bind(b"\0" + name.encode()[:MAX_NAME])
    except OSError:
        announcement.close()
        return None
    return announcement.detach()


def claims_of_other_users() -> Iterator[Claim]:
    """Yield what agents of other users have announced on this machine."""
    try:
        lines = Path("/proc/net/unix").read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        match = SOCKET.search(line)
        if match and int(match[1]) != os.getuid():
            mask = int(match[2], 16)
            cpus = tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)
            yield Claim(run=f"{match[3].decode()} (user {match[1].decode()})", run_dir="", cpus=cpus)
