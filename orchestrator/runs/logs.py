"""Lines of the ranks' logs."""

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
    finished: bool = True  # otherwise: what a terminal shows of a line that has no end yet


def asked_for(run: Run, rank: int | None) -> dict[int, str]:
    """Rank -> node. Raises RequestError for a rank that the run does not have."""
    nodes = {place.rank: place.node for place in run.record.layout}
    if rank is not None and rank not in nodes:
        raise RequestError(f"Run {run.id} has ranks 0 to {max(nodes)}.", hint="Without --rank all are shown.")
    return nodes if rank is None else {rank: nodes[rank]}
