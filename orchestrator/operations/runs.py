"""`orch runs`: read what runs have left behind."""

from __future__ import annotations

from pathlib import Path

from orch_node import supervisor_state
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED
from orch_node.protocol.record import FIRST_TARGET, RunRecord

from orchestrator.operations.find import renewed
from orchestrator.runs import store
from orchestrator.runs.outcome import Outcome, outcome_of
from orchestrator.runs.rows import progress_words, row_of
from orchestrator.targets import registry
from orchestrator.targets.interface import Listed, Tell

ENDED = (DONE, FAILED, REFUSED, STOPPED, PREEMPTED, supervisor_state.KILLED)


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
            local=is_local(run.record),
        )
        for run in found.runs
    )
    return Listed(rows=tuple(rows), warnings=tuple(found.warnings()))


def live_runs(base: Path, inventory: str | None) -> tuple[str, ...]:
    """Return the ids of the runs that have not been seen to end, oldest first."""
    return tuple(row.id for row in listed(base, inventory).rows if row.state not in ENDED)


def is_local(record: RunRecord) -> bool:
    """Return whether all ranks run on this machine, without a batch system."""
    return record.target == FIRST_TARGET and not any(node.via for node in record.nodes)


def outcome(base: Path, name: str, inventory: str | None, tell: Tell) -> Outcome:
    return outcome_of(renewed(base, name, inventory, tell))
