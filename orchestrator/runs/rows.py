"""Rows of the list that `orch runs` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orch_node.protocol.events import Progress
from orch_node.protocol.listing import Standing
from orch_node.protocol.record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list.

    Attributes:
        folder: the folder of its files, on this machine or on its nodes.
        local: whether it runs on this machine alone.
    """

    id: str
    state: str
    recipe: str
    ranks: int
    backend: str
    precision: str
    nodes: tuple[str, ...]
    progress: str
    started_by: str
    created: float
    folder: str
    local: bool = False


def row_of(
    record: RunRecord,
    *,
    state: str,
    nodes: Iterable[str],
    progress: str,
    folder: str,
    precision: str = "",
    local: bool = False,
) -> RunRow:
    """Return the row of a run; `precision` is the one that its ranks chose, if it is known."""
    return RunRow(
        id=record.run_id,
        state=state,
        recipe=record.recipe,
        ranks=len(record.layout),
        backend=record.backend,
        precision=precision or record.precision,
        nodes=tuple(nodes),
        progress=progress,
        started_by=record.started_by,
        created=record.created,
        folder=folder,
        local=local,
    )


def progress_words(progress: Progress | Standing | None, *, is_nan: bool = False) -> str:
    """Return the phase and the step of a run, or an empty string without progress, and whether its loss was NaN."""
    loss = "loss NaN" if is_nan else ""
    if progress is None or progress.step is None:
        return loss
    phase = f"{progress.phase} " if progress.phase else ""
    return f"{phase}{progress.step}/{progress.steps or '?'}{loss and f', {loss}'}"
