"""Events of a run that could not be read, counted and described by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orch_node.protocol.events.rank_events import UnreadableEvent

MAX_REASONS = 3  # of a rank that are reported


class UnreadableEvents:
    """Unreadable events of a run.

    Attributes:
        counts: the number of events of each rank.
        reasons: the first MAX_REASONS reasons of each rank, and one more if there are others.
    """

    def __init__(self, events: Iterable[UnreadableEvent] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.reasons: dict[int, list[str]] = {}
        for event in events:
            self.add(event)

    def add(self, event: UnreadableEvent) -> None:
        """Count an event."""
        self.counts[event.rank] = self.counts.get(event.rank, 0) + max(1, event.count)
        reasons = self.reasons.setdefault(event.rank, [])
        if event.text not in reasons and len(reasons) <= MAX_REASONS:
            reasons.append(event.text)

    def events(self) -> Iterator[UnreadableEvent]:
        """Yield one event for each rank."""
        for rank in sorted(self.counts):
            yield UnreadableEvent(rank=rank, count=self.counts[rank], text=self.reason(rank))

    def reason(self, rank: int) -> str:
        """Return the first reasons of a rank."""
        reasons = self.reasons[rank]
        return "; ".join([*reasons[:MAX_REASONS], *(["and others"] if len(reasons) > MAX_REASONS else [])])

    def describe_all(self) -> list[str]:
        """Return a line for each rank."""
        return [describe(event) for event in self.events()]


def describe(event: UnreadableEvent) -> str:
    """Return how many events of a rank could not be read, and why."""
    count = "1 event" if event.count == 1 else f"{event.count} events"
    source = f"of rank {event.rank}" if event.rank >= 0 else "without a rank"
    return f"note: {count} {source} could not be read: {event.text}"
