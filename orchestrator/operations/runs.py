"""`orch runs`: read what runs have left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orch_node import supervisor_state
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED
from orch_node.protocol.record import DEFAULT_TARGET, RunRecord

from orchestrator.errors import OrchError
from orchestrator.operations.find import find, handle_of, renewed
from orchestrator.runs import store
from orchestrator.runs.outcome import Outcome, outcome_of, precision_of
from orchestrator.runs.rows import progress_words, row_of
from orchestrator.targets import registry
from orchestrator.targets.interface import Listed, RunHandle, Tell

ENDED = (DONE, FAILED, REFUSED, STOPPED, PREEMPTED, supervisor_state.KILLED)
REFRESHED_AT_ONCE = 8


def listed(base: Path, inventory: str | None) -> Listed:
    """The runs recorded here, or those that the hosts of an inventory know."""
    if inventory is not None:
        return registry.at(inventory).list_runs(inventory)
    found = store.recorded(base)
    rows = (
        row_of(
            run.record,
            state=run.state,
            nodes=run.nodes,
            progress=progress_words(run.progress()),
            folder=str(run.folder),
            precision=precision_of(run),
            local=is_local(run.record),
        )
        for run in found.runs
    )
    return Listed(rows=tuple(rows), warnings=tuple(found.warnings()))


def find_live(base: Path, name: str, inventory: str | None, tell: Tell) -> tuple[RunHandle, tuple[str, ...]]:
    """Return a run by its id, and for `last` the newest one that has not ended, with the ids of the other ones.

    Raises:
        RequestError: if there is no such run.
    """
    if name != "last":
        return find(base, name, inventory, tell), ()
    if inventory is None:
        refresh_live(base, tell)
    listing = listed(base, inventory)
    live = [row.id for row in listing.rows if row.state not in ENDED]
    newest = live[-1] if live else name
    if listing.open is None:
        return find(base, newest, inventory, tell), tuple(live[:-1])
    handle = listing.open(base.absolute(), newest, tell)
    handle.tell = tell
    return handle, tuple(live[:-1])


def refresh_live(base: Path, tell: Tell) -> None:
    """Bring the records of runs elsewhere up to date that have not been seen to end."""
    runs = [run for run in store.recorded(base).runs if run.state not in ENDED and not is_local(run.record)]

    def refresh(run: store.Run) -> None:
        try:
            handle = handle_of(run)
            handle.tell = tell
            handle.finish()
        except OrchError as error:
            tell(f"{run.id}: {error.message}")

    with ThreadPoolExecutor(max_workers=REFRESHED_AT_ONCE) as pool:
        list(pool.map(refresh, runs))


def is_local(record: RunRecord) -> bool:
    """Return whether all ranks run on this machine, without a batch system."""
    return record.target == DEFAULT_TARGET and not any(node.via for node in record.nodes)


def outcome(base: Path, name: str, inventory: str | None, tell: Tell) -> Outcome:
    return outcome_of(renewed(base, name, inventory, tell))
