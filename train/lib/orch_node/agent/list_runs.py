"""The runs whose files are on this node: `node.py runs RUNS_DIR`, one JSON object.

For each its run.json, and, on its node0, what its supervisor has written and how far it is. A run
whose record cannot be read is named, and hides no other.
"""

from __future__ import annotations

from pathlib import Path

from orch_node import supervisor_state
from orch_node.protocol import events, files, listing, outcome, record, values
from orch_node.protocol.listing import DamagedRun, ListedRun, Listing, Standing
from orch_node.protocol.values import ProtocolError

TAIL = 1 << 16  # bytes of events.jsonl that hold the newest progress of most runs


def runs_in(base: Path) -> Listing:
    runs: list[ListedRun] = []
    damaged: list[DamagedRun] = []
    for folder in folders(base):
        try:
            runs.append(entry(folder))
        except (OSError, ProtocolError) as error:
            damaged.append(DamagedRun(folder=folder.name, problem=str(error)))
    return Listing(runs=tuple(runs), damaged=tuple(damaged))


def folders(base: Path) -> list[Path]:
    return sorted(path.parent for path in base.glob(f"*/{files.RECORD}"))


def entry(folder: Path) -> ListedRun:
    """Raises OSError, ProtocolError for one that is damaged."""
    return ListedRun(
        record=record.render(record_in(folder)), state=state_of(folder), progress=progress(folder / files.EVENTS)
    )


def record_in(folder: Path) -> record.RunRecord:
    """Raises OSError, ProtocolError."""
    found = record.parse(values.loads((folder / files.RECORD).read_bytes(), files.RECORD))
    if found.run_id != folder.name:
        raise ProtocolError(f"{files.RECORD} is of the run {found.run_id}.")
    return found


def state_of(folder: Path) -> str | None:
    try:
        return outcome.parse((folder / files.OUTCOME).read_bytes()).state
    except (OSError, ProtocolError):
        pass
    supervisor = supervisor_state.read_supervisor(folder)
    return supervisor_state.state_of(folder, supervisor) if supervisor else None


def progress(log: Path) -> Standing | None:
    """The newest progress that a rank has reported."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        event = events.parse(line)  # None for half a line, where the tail begins
        if isinstance(event, events.Progress):
            return Standing(event.phase, event.step, event.steps, event.loss)
    return None


def main(argv: list[str]) -> None:
    print(listing.render(runs_in(Path(argv[0]))))
