"""Lines of the ranks' logs, and the ranks whose logs to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orch_node.streams import STDOUT, split

from orchestrator.errors import RequestError
from orchestrator.runs.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a rank's log."""

    rank: int
    node: str
    text: str
    finished: bool = True  # False for the visible state of a line that has no line break yet
    stream: str = STDOUT  # or stderr


class LineParser:
    """Separates the streams in the lines of logs: one may write while a line of the other has no end yet."""

    def __init__(self) -> None:
        self.fragments: dict[tuple[int, str], LogLine] = {}

    def parse(self, rank: int, node: str, text: str, *, finished: bool = True) -> Iterator[LogLine]:
        """Yield the line of a stream that ends with a line of a log, or with `finished` false its state."""
        for number, (piece, stream) in enumerate(pieces := split(text), start=1):
            start = self.fragments.pop((rank, stream), None)
            line = LogLine(rank=rank, node=node, text=(start.text if start else "") + piece, stream=stream)
            if number < len(pieces):
                self.fragments[rank, stream] = line
                continue
            if not finished and start:
                self.fragments[rank, stream] = start
            yield replace(line, finished=finished)

    def end(self) -> Iterator[LogLine]:
        """Yield the lines that have no end."""
        yield from self.fragments.values()
        self.fragments.clear()


def requested_ranks(run: Run, rank: int | None) -> dict[int, str]:
    """Return the node of the requested rank, or of all ranks, by rank.

    Raises:
        RequestError: if the run has no such rank.
    """
    nodes = {placement.rank: placement.node for placement in run.record.layout}
    if rank is not None and rank not in nodes:
        raise RequestError(f"Run {run.id} has ranks 0 to {max(nodes)}.", hint="Without --rank all are shown.")
    return nodes if rank is None else {rank: nodes[rank]}
