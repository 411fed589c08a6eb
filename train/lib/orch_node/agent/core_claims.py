"""Which cores of this node are taken: one file for each run, locked while its agent lives.

A claim holds as long as the kernel holds the lock, or as long as a process of the run lives: so
nothing has to be given back after a death, and no core is given away under ranks that linger.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orch_node.agent.processes import of_run
from orch_node.protocol import values
from orch_node.protocol.agent import Claim


class Claims:
    """The claims of a node, in a folder that all runs of the node share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: int | None = None

    def take(self, claim: Claim) -> tuple[Claim, ...]:
        """Claim these cores unless a living run has one of them; -> those that are in the way.

        Atomic: whoever asks at the same time waits for the answer. Claiming again is no conflict.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wanted = set(claim.cpus)
            others = [found for found in self.living() if found.run != claim.run]
            taken = tuple(
                replace(found, cpus=tuple(sorted(wanted & set(found.cpus))))
                for found in others
                if wanted & set(found.cpus)
            )
            if not taken and self.held is None:
                self.hold(claim)
            return taken

    def hold(self, claim: Claim) -> None:
        path = self.folder / f"{claim.run}.json"
        self.held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.held, fcntl.LOCK_EX)
        os.ftruncate(self.held, 0)
        os.write(self.held, json.dumps(values.record(claim)).encode())

    def release(self, run_id: str) -> None:
        if self.held is not None:
            (self.folder / f"{run_id}.json").unlink(missing_ok=True)
            os.close(self.held)
            self.held = None

    def living(self) -> Iterator[Claim]:
        """Claims that hold; files of dead ones are removed."""
        for path in sorted(self.folder.glob("*.json")):
            with path.open() as file:
                try:
                    claim = values.parse(Claim, file.read(), path.name)
                except values.ProtocolError:  # its writer died while it wrote
                    claim = Claim(run=path.stem, run_dir="", cpus=())
                if locked(file.fileno()) or (claim.run_dir and of_run(claim.run_dir)):
                    yield claim
                else:
                    path.unlink(missing_ok=True)


def locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
