"""The folders that a run writes: held by leases, and watched for requests from other hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from orch_node import machine
from orch_node.lease import CHECK_SECONDS, Holder, Lease
from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

WAIT_SECONDS = 1.0


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
