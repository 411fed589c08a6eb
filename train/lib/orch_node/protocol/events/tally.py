"""What could not be read of a run's events, counted by rank and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orch_node.protocol.events.of_ranks import UnreadableEvent

REASONS = 3  # of a rank that are told


class UnreadableEvents:
    """`counts`: by rank; `reasons`: the first few of each, and one more where there were others."""

    def __init__(self, told: Iterable[UnreadableEvent] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.reasons: dict[int, list[str]] = {}
        for event in told:
            self.add(event)

    def add(self, event: UnreadableEvent) -> None:
        self.counts[event.rank] = self.counts.get(event.rank, 0) + max(1, event.count)
        known = self.reasons.setdefault(event.rank, [])
        if event.text not in known and len(known) <= REASONS:
            known.append(event.text)

    def events(self) -> Iterator[UnreadableEvent]:
        """One for each rank."""
        for rank in sorted(self.counts):
            yield UnreadableEvent(rank=rank, count=self.counts[rank], text=self.reason(rank))

    def reason(self, rank: int) -> str:
        known = self.reasons[rank]
        return "; ".join([*known[:REASONS], *(["and others"] if len(known) > REASONS else [])])

    def words(self) -> list[str]:
        """A line for each rank."""
        return [describe(one) for one in self.events()]


def describe(left: UnreadableEvent) -> str:
    one = left.count == 1
    whose = f"of rank {left.rank}" if left.rank >= 0 else f"that {'is' if one else 'are'} no rank's"
    events = "1 event" if one else f"{left.count} events"
    was = "was" if one else "were"
    return f"note: {events} {whose} could not be read and {was} left out: {left.text}"
