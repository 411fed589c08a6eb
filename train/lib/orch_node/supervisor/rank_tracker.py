"""What is known of the ranks of one attempt: who joined, who is behind, who failed first."""

from __future__ import annotations

from collections.abc import Iterable

from orch_node.protocol import failures
from orch_node.protocol.events import (
    NO_RANK,
    SIGNS,
    Event,
    Exited,
    Heartbeat,
    Joined,
    Preempted,
    Progress,
    Started,
    Unanswered,
)
from orch_node.protocol.failures import RankEnd
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import Failure


class RankTracker:
    """The ranks of a layout, and what their events have told. Times are of the caller's clock."""

    def __init__(self, layout: RunLayout, now: float) -> None:
        self.nodes = {placement.rank: placement.node for placement in layout.ranks}
        self.heard = now
        self.started: dict[int, Started] = {}
        self.joined: set[int] = set()
        self.exits: dict[int, Exited] = {}
        self.ends: dict[int, RankEnd] = {}  # of ranks that failed, in the order of getting known
        self.heartbeats: dict[int, Heartbeat] = {}
        self.progress: dict[int, Progress] = {}
        self.checkpoints: dict[int, int] = {}  # steps of ranks that make room
        self.unanswered: set[int] = set()  # ranks that must not be asked for stack traces

    def knows(self, rank: int) -> bool:
        """Whether it is one of these ranks, or what tells of one that never learnt its number."""
        return rank == NO_RANK or rank in self.nodes

    def take(self, event: Event, now: float) -> None:
        if isinstance(event, SIGNS):
            self.heard = now
        failures.take(self.ends, event)
        if isinstance(event, Started):
            self.started[event.rank] = event
        elif isinstance(event, Joined):
            self.joined.add(event.rank)
        elif isinstance(event, Heartbeat):
            self.heartbeats[event.rank] = event
        elif isinstance(event, Progress):
            self.progress[event.rank] = event
        elif isinstance(event, Preempted):
            self.checkpoints[event.rank] = event.step
        elif isinstance(event, Unanswered):
            self.unanswered.add(event.rank)
        elif isinstance(event, Exited):
            self.exits[event.rank] = event

    @property
    def failed(self) -> list[int]:
        """In the order in which it became known."""
        return list(self.ends)

    def first_failure(self) -> Failure | None:
        return failures.first_failure(self.ends, self.nodes)

    def undecided(self) -> bool:
        """Whether more may become known of the first failure: its exit code, or who caused it."""
        first = failures.culprit(self.ends.values())
        return first is not None and (first.exited is None or first.is_consequence)

    def unfinished(self) -> list[int]:
        return sorted(set(self.nodes) - set(self.exits))

    def making_room(self) -> bool:
        """Whether a rank has ended to make room."""
        return any(one.made_room for one in self.exits.values())

    def waiting_to_join(self) -> bool:
        return len(self.joined) < len(self.nodes)

    def quiet(self, now: float) -> float:
        """Seconds since the last sign of life of any rank."""
        return now - self.heard

    def absent(self) -> str:
        """Who is missing or behind, in one line."""
        missing = sorted(set(self.nodes) - self.joined)
        if missing:
            words = f"{len(self.joined)} of {len(self.nodes)} ranks joined"
            return f"{words}; missing: {self.name(missing)}"
        waiting = self.unfinished()
        counts = {rank: self.heartbeats.get(rank, Heartbeat()).collectives for rank in waiting}
        furthest = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < furthest]
        ended = len(self.nodes) - len(waiting)
        told = [f"{ended} of {len(self.nodes)} ranks have ended"] if ended else []
        if behind:
            ahead = len(waiting) - len(behind)
            told.append(f"{ahead} of {len(self.nodes)} ranks wait in collective {furthest}")
            told.append(f"behind: {self.name(behind, counts)}")
        elif furthest:
            told.append(f"all of {self.name(waiting)} stand at collective {furthest}")
        else:
            told.append(f"silent: {self.name(waiting)}")
        return "; ".join(told)

    def name(self, ranks: Iterable[int], counts: dict[int, int] | None = None) -> str:
        """Ranks with their nodes: `node3 ranks 12-14, node5 rank 20 (at 17)`."""
        by_node: dict[str, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self.nodes[rank], []).append(rank)
        parts = []
        for node, own in by_node.items():
            at = f" (at {', '.join(str(counts[rank]) for rank in own)})" if counts else ""
            parts.append(f"{node} rank{'s' * (len(own) > 1)} {spans(own)}{at}")
        return ", ".join(parts)


def spans(numbers: Iterable[int]) -> str:
    """(12, 13, 14, 20) -> '12-14, 20'."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in found)
