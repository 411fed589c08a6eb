"""Which run is meant, and where it lives: recorded here, or asked of an inventory's hosts."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.files import other_owner
from orchestrator.runs import store
from orchestrator.runs.state_files import PLAN
from orchestrator.runs.store import Run
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle, Tell, silent


def find(runs_dir: Path, name: str, inventory: str | None, tell: Tell = silent) -> RunHandle:
    """A run by its id, or `last`. Raises RequestError.

    With an inventory its hosts are asked, so that any controller finds it.
    """
    base = runs_dir.absolute()
    if inventory is None:
        handle = handle_of(store.find(base, name, tell))
    else:
        handle = registry.at(inventory).find(base, name, inventory, tell)
    handle.tell = tell
    return handle


def handle_of(run: Run) -> RunHandle:
    """Raises RequestError for the run of another user: its record names programs, and how its nodes
    are reached, and both would be used here."""
    if other := other_owner(run.folder) or other_owner(run.folder / PLAN):
        raise RequestError(
            f"{run.folder} belongs to another user ({other}): its record is not trusted.",
            hint="--inventory finds the run on its nodes.",
        )
    return registry.of_record(run.record).handle(run.record, run.folder)


def renewed(base: Path, name: str, inventory: str | None, tell: Tell) -> Run:
    """A run, as its nodes know it now if it was not seen to end; `tell` says which did not answer.

    Raises RequestError.
    """
    handle = find(base, name, inventory, tell)
    if store.load(handle.folder).outcome is None:
        handle.finish()
    return store.load(handle.folder)
