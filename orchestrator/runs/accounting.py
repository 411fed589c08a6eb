"""accounting.json: what the batch system recorded of a run's job."""

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

    source: str  # the program that reported it: sacct, or scontrol where there is no accounting
    job: str
    state: str  # CANCELLED, TIMEOUT, ...
    elapsed_seconds: int
    max_rss_bytes: int | None = None  # of the largest task of any step, if the site measures it

    def describe(self) -> str:
        """Return it on one line."""
        memory = self.max_rss_bytes
        size = f", {memory / (1 << 20):.0f} MiB in its largest task" if memory else ""
        return f"job {self.job}: {self.state}, {self.elapsed_seconds} s{size} ({self.source})"


def write(folder: Path, accounting: Accounting) -> None:
    write_json(folder / FILE, asdict(accounting))


def read(folder: Path) -> Accounting | None:
    """Return what is recorded in a run's folder, or None if nothing is or it cannot be read."""
    try:
        return values.parse(Accounting, (folder / FILE).read_bytes(), FILE)
    except (OSError, ProtocolError):
        return None
