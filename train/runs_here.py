"""The runs whose files are on this node: `python runs_here.py RUNS_DIR`, one JSON object.

For each its run.json, and, on its node0, what its supervisor has written and how far it is.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import processes

TAIL = 1 << 16  # bytes of events.jsonl that hold the newest progress of most runs


def runs_in(base: Path) -> list[dict[str, Any]]:
    return [
        entry(path.parent)
        for path in sorted(base.glob("*/run.json"), key=lambda path: path.parent.name)
    ]


def entry(folder: Path) -> dict[str, Any]:
    """`state` is None where only node0 can know it."""
    card = json.loads((folder / "run.json").read_text())
    return {"card": card, "state": state_of(folder), "progress": progress(folder / "events.jsonl")}


def state_of(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "outcome.json").read_text())["state"])
    except (OSError, ValueError):
        pass
    try:
        pid = int(json.loads((folder / "supervisor.json").read_text())["pid"])
    except (OSError, ValueError):
        return None
    argv = processes.argv_of(pid)
    watches = processes.role_of(argv) == "supervisor"
    return "running" if watches and os.path.samefile(os.fsdecode(argv[2]), folder) else "killed"


def progress(events: Path) -> dict[str, Any] | None:
    """The newest progress that a rank has reported."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, events.stat().st_size - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        if b'"event": "progress"' in line:
            try:
                event = json.loads(line)
            except ValueError:  # the first line of the tail may be half a one
                continue
            return {name: event.get(name) for name in ("phase", "step", "steps", "loss")}
    return None


if __name__ == "__main__":
    print(json.dumps({"schema": 1, "runs": runs_in(Path(sys.argv[1]))}))
