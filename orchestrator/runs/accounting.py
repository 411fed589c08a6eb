"""The file accounting.json, which holds the batch system's record of a run's job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.values import ProtocolError

from orchestrator.runs.state_files import write_json

FILE = "accounting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """A job as the batch system recorded it."""

    source: str  # the program that reported it: sacct, or scontrol if there is no accounting
    job: str
    state: str  # CANCELLED, TIMEOUT, ...
    elapsed_seconds: int
    max_rss_bytes: int | None = None  # if the site measures it
    measured: str = "in its largest task"  # what used that memory

    def describe(self) -> str:
        """Return the recorded figures on one line."""
        memory = self.max_rss_bytes
        size = f", {memory / (1 << 20):.0f} MiB {self.measured}" if memory else ""
        return f"job {self.job}: {self.state}, {self.elapsed_seconds} s{size} ({self.source})"


def write(folder: Path, accounting: Accounting) -> None:
    """Write the accounting of a run to its folder."""
    write_json(folder / FILE, asdict(accounting))


def read(folder: Path) -> Accounting | None:
    """Return the accounting in a run's folder, or None if there is none or it cannot be read."""
    try:
        return values.parse(Accounting, (folder / FILE).read_bytes(), FILE)
    except (OSError, ProtocolError):
        return None
