"""Read and prepare the folders of runs on this node.

  node.py runs RUNS_DIR                      list the runs: the run.json of each and, on its node0, what its supervisor
                                             has written and its progress. A run whose record cannot be read is listed
                                             as damaged, and does not affect the others.
  node.py prepare-attempt RUN_DIR [FILE...]  remove what reports the end of the last attempts, and these files of the
                                             folder, so that the run counts as planned. The events, the logs and
                                             everything that the script has written stay.

The first prints one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orch_node import atomic_write, disk, lease
from orch_node.agent import processes
from orch_node.protocol import files, record, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import NAN_LOSS, Progress, Result, Warned
from orch_node.protocol.node_reports import DamagedRun, ListedRun, Listing, RunReport
from orch_node.protocol.values import ProtocolError
from orch_node.tail import newest_event

LOG_BYTES = 1 << 20  # of the end of events.jsonl, in which the newest events are searched
DAMAGED_FOLDER = "damaged"
ENDED = (files.OUTCOME, files.SUPERVISOR, files.STOP, files.HANDED_LOGS)


def list_runs(base: Path) -> Listing:
    """Return all runs below a folder."""
    runs: list[ListedRun] = []
    damaged: list[DamagedRun] = []
    for folder in sorted(path.parent for path in base.glob(f"*/{files.RECORD}")):
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
    outcome, supervisor = values.load(outcomes.parse, folder / files.OUTCOME), lease.read_supervisor(folder)
    state = lease.state_of(folder, supervisor) if supervisor and not outcome else None
    return ListedRun(run_record, outcome.state if outcome else state, report_of(folder, outcome))


def report_of(folder: Path, outcome: outcomes.Outcome | None) -> RunReport:
    """Return what the run in a folder has reported until now, its progress without the figures."""
    supervisor, log = lease.read_supervisor(folder), folder / files.EVENTS
    progress, result, warning = (newest_event(log, kind, LOG_BYTES) for kind in (Progress, Result, Warned))
    return RunReport(
        started=supervisor.started if supervisor else None,
        progress=replace(progress, figures={}) if isinstance(progress, Progress) else None,
        result=result.figures if isinstance(result, Result) else {},
        is_nan=isinstance(warning, Warned) and NAN_LOSS in warning.text,
        outcome=outcome and replace(outcome, nodes={}),
    )


def read_record(folder: Path) -> record.RunRecord:
    """Return the record of the run in a folder.

    Raises:
        OSError: if it cannot be read.
        ProtocolError: if it is damaged, or belongs to another run.
    """
    run_record = record.parse(values.loads(atomic_write.read(folder / files.RECORD), files.RECORD))
    if run_record.run_id != folder.name:
        raise ProtocolError(f"{files.RECORD} belongs to the run {run_record.run_id}.")
    return run_record


def main_runs(argv: list[str]) -> None:
    """Print the runs as JSON."""
    print(values.render(list_runs(Path(argv[0]))))


def set_aside(folder: Path) -> str | None:
    """Move the folder of a damaged run to the folder of all damaged runs, and return its new path.

    Nothing is deleted, since it may hold checkpoints. Returns None if the run may still be alive.
    """
    if processes.run_processes(str(folder)) or lease.may_run_elsewhere(folder):
        return None
    damaged_folder = folder.parent / DAMAGED_FOLDER
    damaged_folder.mkdir(mode=0o700, exist_ok=True)
    candidates = (damaged_folder / f"{folder.name}{suffix}" for suffix in ("", *(f".{n}" for n in range(1, 1000))))
    return str(folder.rename(next(path for path in candidates if not path.exists())))


def main_prepare_attempt(argv: list[str]) -> int:
    """Prepare the folder of the argument; return the exit code."""
    run_dir, names = Path(argv[0]), argv[1:]
    try:
        supervisor, has_ended = lease.read_supervisor(run_dir), (run_dir / files.OUTCOME).exists()
        if supervisor and not has_ended and lease.state_of(run_dir, supervisor) == lease.RUNNING:
            sys.exit("the run has not ended")
        prepare(run_dir, names)
    except OSError as error:
        sys.exit(disk.describe_error(run_dir, error))
    return 0


def prepare(run_dir: Path, names: Iterable[str] = ()) -> None:
    """Remove what reports the end of the last attempt.

    Raises:
        OSError: if the folder cannot be written.
    """
    saved_outcomes = [path.name for path in run_dir.glob("*") if files.SAVED_OUTCOME.fullmatch(path.name)]
    for name in (*ENDED, *saved_outcomes, *names):
        (run_dir / name).unlink(missing_ok=True)
