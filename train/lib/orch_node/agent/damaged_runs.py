"""Runs of this node whose record cannot be read: `node.py damaged RUNS_DIR [--set-aside]`.

One JSON object. Their folders may hold checkpoints: they are moved to RUNS_DIR/damaged, not
deleted, and only where no process of the run lives.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from orch_node import supervisor_state
from orch_node.agent import list_runs, processes
from orch_node.protocol import listing
from orch_node.protocol.listing import DamagedRun, SetAside
from orch_node.protocol.values import ProtocolError

ASIDE = "damaged"


def damaged_in(base: Path) -> Iterator[DamagedRun]:
    for folder in list_runs.folders(base):
        try:
            list_runs.record_in(folder)
        except (OSError, ProtocolError) as error:
            yield DamagedRun(folder=folder.name, problem=str(error))


def set_aside(folder: Path) -> str | None:
    """Where it is now; None where it stays, because something of the run lives."""
    if processes.of_run(str(folder)) or supervisor_state.may_run_elsewhere(folder):
        return None
    aside = folder.parent / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    target = next(path for path in names(aside / folder.name) if not path.exists())
    folder.rename(target)
    return str(target)


def names(path: Path) -> Iterator[Path]:
    yield path
    for number in range(1, 1000):
        yield path.with_name(f"{path.name}.{number}")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="node.py damaged")
    parser.add_argument("base", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    asked = parser.parse_args(argv)
    found = tuple(damaged_in(asked.base))
    moved = {one.folder: set_aside(asked.base / one.folder) for one in found if asked.set_aside}
    there = {folder: path for folder, path in moved.items() if path}
    print(listing.render_set_aside(SetAside(found, there)))
