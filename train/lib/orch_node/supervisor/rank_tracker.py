"""What is known of the ranks of one attempt: who joined, who is behind, who failed first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    ScriptEnded,
    Started,
    Unanswered,
)
from orch_node.protocol.failures import RankEnd
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import Failure
from orch_node.protocol.record import number_ranges

TRACES_SECONDS = 5.0  # in which the log of a rank grows by the stack traces it was asked for
MOST_STANDS = 3  # ranks whose place is reported


class RankTracker:
    """The ranks of a layout, and what their events have told. Times are of the caller's clock."""

    def __init__(self, layout: RunLayout, now: float) -> None:
        self.nodes = {placement.rank: placement.node for placement in layout.ranks}
        self.heard = now
        self.traces_asked = -TRACES_SECONDS
        self.started: dict[int, Started] = {}
        self.joined: set[int] = set()
        self.exits: dict[int, Exited] = {}
        self.ends: dict[int, RankEnd] = {}  # of ranks that failed, in the order of getting known
        self.heartbeats: dict[int, Heartbeat] = {}
        self.progress: dict[int, Progress] = {}
        self.script_ends: dict[int, ScriptEnded] = {}
        self.checkpoints: dict[int, int] = {}  # steps of ranks that make room
        self.unanswered: set[int] = set()  # ranks that must not be asked for stack traces

    def knows(self, rank: int) -> bool:
        """Whether it is one of these ranks, or what tells of one that never learnt its number."""
        return rank == NO_RANK or rank in self.nodes

    def take(self, event: Event, now: float) -> None:
        if isinstance(event, SIGNS) and not self.is_log_of_traces(event, now):
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
        elif isinstance(event, ScriptEnded):
            self.script_ends[event.rank] = event
        elif isinstance(event, Preempted):
            self.checkpoints[event.rank] = event.step
        elif isinstance(event, Unanswered):
            self.unanswered.add(event.rank)
        elif isinstance(event, Exited):
            self.exits[event.rank] = event

    def is_log_of_traces(self, event: Event, now: float) -> bool:
        """Return whether only the log has grown, by the stack traces that were just asked for."""
        if not isinstance(event, Heartbeat) or now - self.traces_asked > TRACES_SECONDS:
            return False
        last = self.heartbeats.get(event.rank, Heartbeat())
        return (event.collectives, event.steps) == (last.collectives, last.steps)

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

    def any_preempted(self) -> bool:
        """Whether a rank has ended to make room."""
        return any(one.preempted for one in self.exits.values())

    def waiting_to_join(self) -> bool:
        return len(self.joined) < len(self.nodes)

    def waiting_in_vain(self) -> dict[int, int]:
        """Return the ranks that are in a collective in which another rank will never take part,
        because its script has ended, and the number of that collective."""
        return self.counts_beyond_ended_scripts(set(self.unfinished()) - set(self.script_ends))

    def counts_beyond_ended_scripts(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return those of the ranks that began more collectives than a rank whose script has ended,
        with the number of the last one."""
        last = min((end.world_collectives for end in self.script_ends.values()), default=None)
        if last is None:
            return {}
        beats = {rank: self.heartbeats.get(rank, Heartbeat()) for rank in sorted(ranks)}
        counts = {rank: beat.world_collectives for rank, beat in beats.items()}
        return {rank: count for rank, count in counts.items() if count > last}

    def describe_uneven_end(self, waiting: Mapping[int, int]) -> str:
        """Return in one line which ranks' scripts have ended while these ones wait for them."""
        furthest = max(waiting.values())
        ends = {rank: end.world_collectives for rank, end in self.script_ends.items()}
        early = sorted(rank for rank, count in ends.items() if count < furthest)
        last = min(ends[rank] for rank in early)
        return (
            f"{self.name(early)} ended the script after {last} collectives, but "
            f"{self.name(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in collective "
            f"{furthest}, which needs all ranks"
        )

    def quiet(self, now: float) -> float:
        """Seconds since the last sign of life of any rank."""
        return now - self.heard

    def collectives(self) -> dict[int, int]:
        """Return the number of collectives that each rank has begun whose script has not ended."""
        return {rank: self.heartbeats.get(rank, Heartbeat()).collectives for rank in self.waiting()}

    def waiting(self) -> list[int]:
        """Return the ranks whose scripts have not ended."""
        return sorted(set(self.unfinished()) - set(self.script_ends))

    def behind(self) -> list[int]:
        """Return the unfinished ranks for which others wait in a later collective."""
        counts = self.collectives()
        furthest = max(counts.values(), default=0)
        return [rank for rank, count in counts.items() if count < furthest]

    def absent(self) -> str:
        """Who is missing or behind, in one line."""
        missing = sorted(set(self.nodes) - self.joined)
        if missing:
            words = f"{len(self.joined)} of {len(self.nodes)} ranks joined"
            return f"{words}; missing: {self.name(missing)}"
        waiting = self.waiting()
        counts = self.collectives()
        furthest = max(counts.values(), default=0)
        behind = self.behind()
        ended = len(self.nodes) - len(waiting)
        told = [f"{ended} of {len(self.nodes)} ranks have ended"] if ended else []
        if behind:
            ahead = len(waiting) - len(behind)
            told.append(f"{ahead} of {len(self.nodes)} ranks wait in collective {furthest}")
            if begun := [rank for rank in behind if counts[rank]]:
                told.append(f"behind: {self.name(begun, counts)}")
            if never := [rank for rank in behind if not counts[rank]]:
                told.append(f"{self.name(never)} never reached the first collective")
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
            parts.append(f"{node} rank{'s' * (len(own) > 1)} {number_ranges(own)}{at}")
        return ", ".join(parts)


def describe_stands(stands: Mapping[str, str], ranks: Sequence[int]) -> str:
    """Return where these ranks are, `; it is at hang.py:6 main`, or where the first of them are."""
    places = {rank: stands[str(rank)] for rank in ranks if str(rank) in stands}
    if len(ranks) == 1 and places:
        return f"; it is at {places[ranks[0]]}"
    return "".join(f"; rank {rank} is at {places[rank]}" for rank in list(places)[:MOST_STANDS])
