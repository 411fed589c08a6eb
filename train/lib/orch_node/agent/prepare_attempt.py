"""Prepare a run's folder on this node for the next attempt of the run: `node.py prepare-attempt RUN_DIR [FILE...]`.

What reports the end of the last attempt is removed, also these files of the folder, so that the run counts as planned.
The events, the logs and everything that the script has written stay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from orch_node import atomic_write, disk, supervisor_state
from orch_node.protocol import files

ENDED = (files.OUTCOME, files.SUPERVISOR, files.STOP, files.HANDED_LOGS)


def main(argv: list[str]) -> int:
    """Prepare the folder of the argument; return the exit code."""
    run_dir, names = Path(argv[0]), argv[1:]
    try:
        if is_running(run_dir):
            print("the run has not ended", file=sys.stderr)
            return 1
        prepare(run_dir, names)
    except OSError as error:
        print(disk.describe_error(run_dir, error), file=sys.stderr)
        return 1
    return 0


def is_running(run_dir: Path) -> bool:
    """Return whether the supervisor of the run is alive, as far as this node can know."""
    supervisor = supervisor_state.read_supervisor(run_dir)
    if supervisor is None or (run_dir / files.OUTCOME).exists():
        return False
    return supervisor_state.state_of(run_dir, supervisor) == supervisor_state.RUNNING


def prepare(run_dir: Path, names: Iterable[str] = ()) -> None:
    """Remove what reports the end of the last attempt, and record how long the logs of the ranks are.

    Raises:
        OSError: if the folder cannot be written.
    """
    sizes = {}
    for log in (run_dir / files.RANKS).glob("rank-*.log"):
        if (rank := files.rank_of(log.name)) is not None:
            sizes[str(rank)] = log.stat().st_size
    if sizes:
        atomic_write.write(run_dir / files.EARLIER_LOGS, json.dumps(sizes) + "\n")
    for name in (*ENDED, *names):
        (run_dir / name).unlink(missing_ok=True)
