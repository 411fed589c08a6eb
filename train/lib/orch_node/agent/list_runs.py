"""The runs whose files are on this node: `node.py runs RUNS_DIR`, one JSON object.

For each its run.json, and, on its node0, what its supervisor has written and how far it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from orch_node.agent import processes
from orch_node.protocol import events, files, listing, outcome, record
from orch_node.protocol.listing import ListedRun, Listing, Standing
from orch_node.protocol.values import ProtocolError

TAIL = 1 << 16  # bytes of events.jsonl that hold the newest progress of most runs


def runs_in(base: Path) -> Listing:
    records = sorted(base.glob(f"*/{files.RECORD}"), key=lambda path: path.parent.name)
    return Listing(tuple(entry(path.parent) for path in records))


def entry(folder: Path) -> ListedRun:
    return ListedRun(
        record=record.render(record.parse(json.loads((folder / files.RECORD).read_text()))),
        state=state_of(folder),
        progress=progress(folder / files.EVENTS),
    )


def state_of(folder: Path) -> str | None:
    try:
        return outcome.parse((folder / files.OUTCOME).read_text()).state
    except (OSError, ProtocolError):
        pass
    try:
        pid = outcome.parse_supervisor((folder / files.SUPERVISOR).read_text()).pid
    except (OSError, ProtocolError):
        return None
    argv = processes.argv_of(pid)
    watches = processes.role_of(argv, pid) == "supervisor"
    named = processes.run_named_by(argv, pid)
    return "running" if watches and named and os.path.samefile(named, folder) else "killed"


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
