"""Lines of the ranks' logs, and the ranks whose logs to show."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import RequestError
from orchestrator.runs.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a rank's log."""

    rank: int
    node: str
    text: str
    finished: bool = True  # False for the visible state of a line that has no line break yet


def requested_ranks(run: Run, rank: int | None) -> dict[int, str]:
    """Return the node of the requested rank, or of all ranks, by rank.

    Raises:
        RequestError: if the run has no such rank.
    """
    nodes = {placement.rank: placement.node for placement in run.record.layout}
    if rank is not None and rank not in nodes:
        raise RequestError(f"Run {run.id} has ranks 0 to {max(nodes)}.", hint="Without --rank all are shown.")
    return nodes if rank is None else {rank: nodes[rank]}
