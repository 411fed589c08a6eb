"""Find runs on this node with unreadable records: `node.py damaged RUNS_DIR [--set-aside]`.

Prints one JSON object. With --set-aside the folders are moved to RUNS_DIR/damaged, not deleted: they
may hold checkpoints. A run with living processes is not moved.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from orch_node import supervisor_state
from orch_node.agent import list_runs, processes
from orch_node.protocol import values
from orch_node.protocol.node_reports import DamagedRun, DamagedRuns
from orch_node.protocol.values import ProtocolError

DAMAGED_FOLDER = "damaged"


def find_damaged(base: Path) -> Iterator[DamagedRun]:
    """Yield the runs below a folder whose record cannot be read."""
    for folder in list_runs.run_folders(base):
        try:
            list_runs.read_record(folder)
        except (OSError, ProtocolError) as error:
            yield DamagedRun(folder=folder.name, problem=str(error))


def set_aside(folder: Path) -> str | None:
    """Move a damaged run, and return its new path; None if the run may still be alive."""
    if processes.run_processes(str(folder)) or supervisor_state.may_run_elsewhere(folder):
        return None
    damaged_folder = folder.parent / DAMAGED_FOLDER
    damaged_folder.mkdir(mode=0o700, exist_ok=True)
    candidates = (damaged_folder / f"{folder.name}{suffix}" for suffix in ("", *(f".{n}" for n in range(1, 1000))))
    target = next(path for path in candidates if not path.exists())
    folder.rename(target)
    return str(target)


def main(argv: list[str]) -> None:
    """Print the damaged runs and where they were moved, as JSON."""
    parser = argparse.ArgumentParser(prog="node.py damaged")
    parser.add_argument("base", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    options = parser.parse_args(argv)
    damaged = tuple(find_damaged(options.base))
    targets = {run.folder: set_aside(options.base / run.folder) for run in damaged if options.set_aside}
    moved = {folder: path for folder, path in targets.items() if path}
    print(values.render(DamagedRuns(damaged, moved)))
