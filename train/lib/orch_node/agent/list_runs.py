"""List the runs whose files are on this node: `node.py runs RUNS_DIR`, one JSON object.

Each run has its run.json and, on its node0, what its supervisor has written and its progress. A run
whose record cannot be read is listed as damaged, and does not affect the others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch_node import supervisor_state
from orch_node.protocol import events, files, record, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import NAN_LOSS, Event, Progress, Result, Warned
from orch_node.protocol.node_reports import DamagedRun, ListedRun, Listing, Standing
from orch_node.protocol.outcome import Outcome
from orch_node.protocol.values import ProtocolError
from orch_node.tail import lines_backwards

LOG_BYTES = 1 << 20  # of the end of events.jsonl, in which the newest events are searched


def list_runs(base: Path) -> Listing:
    """Return all runs below a folder."""
    runs: list[ListedRun] = []
    damaged: list[DamagedRun] = []
    for folder in run_folders(base):
        try:
            runs.append(listed_run(folder))
        except (OSError, ProtocolError) as error:
            damaged.append(DamagedRun(folder=folder.name, problem=str(error)))
    return Listing(runs=tuple(runs), damaged=tuple(damaged))


def listed_run(folder: Path) -> ListedRun:
    """Return the run in a folder.

    Raises:
        OSError: if its record cannot be read.
        ProtocolError: if its record is damaged, or belongs to another run.
    """
    run_record = record.render(read_record(folder))
    outcome, supervisor = last_outcome(folder), supervisor_state.read_supervisor(folder)
    state = supervisor_state.state_of(folder, supervisor) if supervisor and not outcome else None
    newest = newest_events(folder / files.EVENTS)
    progress, result, warning = newest.get(Progress), newest.get(Result), newest.get(Warned)
    return ListedRun(
        record=run_record,
        state=outcome.state if outcome else state,
        progress=Standing(progress.phase, progress.step, progress.steps, progress.loss)
        if isinstance(progress, Progress)
        else None,
        result=result.figures if isinstance(result, Result) else {},
        is_nan=isinstance(warning, Warned) and NAN_LOSS in warning.text,
        started=supervisor.started if supervisor else None,
        outcome=outcome,
    )


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


def last_outcome(folder: Path) -> Outcome | None:
    """Return how a run ended, without the results of the nodes, or None."""
    try:
        return replace(outcomes.parse((folder / files.OUTCOME).read_bytes()), nodes={})
    except (OSError, ProtocolError):
        return None


def newest_events(log: Path) -> dict[type[Event], Event]:
    """Return the last event of each of these kinds near the end of a log: Progress, Result and Warned."""
    newest: dict[type[Event], Event] = {}
    names = {f'"{kind.kind}"'.encode(): kind for kind in (Progress, Result, Warned)}
    try:
        with log.open("rb") as file:
            for line in lines_backwards(file, LOG_BYTES):
                if any(kind not in newest and name in line for name, kind in names.items()):
                    event = events.parse_line(line)
                    newest.setdefault(type(event), event)
    except OSError:
        pass
    return newest


def main(argv: list[str]) -> None:
    """Print the runs as JSON."""
    print(values.render(list_runs(Path(argv[0]))))
