"""List the runs whose files are on this node: `node.py runs RUNS_DIR`, one JSON object.

Each run has its run.json and, on its node0, what its supervisor has written and its progress. A run
whose record cannot be read is listed as damaged, and does not affect the others.
"""

from __future__ import annotations

from pathlib import Path

from orch_node import supervisor_state
from orch_node.protocol import events, files, listing, outcome, record, values
from orch_node.protocol.listing import DamagedRun, ListedRun, Listing, Standing
from orch_node.protocol.values import ProtocolError

TAIL_BYTES = 1 << 16  # of events.jsonl, which contain the newest progress of most runs


def list_runs(base: Path) -> Listing:
    """Return all runs below a folder."""
    runs: list[ListedRun] = []
    damaged: list[DamagedRun] = []
    for folder in run_folders(base):
        try:
            runs.append(
                ListedRun(
                    record=record.render(read_record(folder)),
                    state=state_of(folder),
                    progress=last_progress(folder / files.EVENTS),
                )
            )
        except (OSError, ProtocolError) as error:
            damaged.append(DamagedRun(folder=folder.name, problem=str(error)))
    return Listing(runs=tuple(runs), damaged=tuple(damaged))


def run_folders(base: Path) -> list[Path]:
    """Return the folders that have a run's record."""
    return sorted(path.parent for path in base.glob(f"*/{files.RECORD}"))


def read_record(folder: Path) -> record.RunRecord:
    """Return the record of the run in a folder.

    Raises:
        OSError: if it cannot be read.
        ProtocolError: if it is damaged, or belongs to another run.
    """
    run_record = record.parse(values.loads((folder / files.RECORD).read_bytes(), files.RECORD))
    if run_record.run_id != folder.name:
        raise ProtocolError(f"{files.RECORD} belongs to the run {run_record.run_id}.")
    return run_record


def state_of(folder: Path) -> str | None:
    """Return the state of a run: its outcome, or that of its supervisor; None without both."""
    try:
        return outcome.parse((folder / files.OUTCOME).read_bytes()).state
    except (OSError, ProtocolError):
        pass
    supervisor = supervisor_state.read_supervisor(folder)
    return supervisor_state.state_of(folder, supervisor) if supervisor else None


def last_progress(log: Path) -> Standing | None:
    """Return the newest progress that a rank has reported."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        event = events.parse(line)  # None for the half line at the start
        if isinstance(event, events.Progress):
            return Standing(event.phase, event.step, event.steps, event.loss)
    return None


def main(argv: list[str]) -> None:
    """Print the runs as JSON."""
    print(listing.render(list_runs(Path(argv[0]))))
