"""Which rank is to blame for the end of a run: the one rule, for all that watch ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orch_node.protocol.events import Event, Exited, Raised
from orch_node.protocol.outcome import Failure

# What a rank says when another one went away: it fails too, but it is not the culprit.
CONSEQUENCES = re.compile(
    r"Connection (?:closed by|reset by) peer|Connection closed by remote peer|Broken pipe"
    r"|Failed to recv, got 0 bytes|Read error \[|Write error \[|Application timeout caused pair"
    r"|Timed out waiting \d+ms for|ProcessGroupWrapper|failed to connect|wait timeout after"
    r"|is gone: its process has ended|has left the job with exit code"  # of the backend ccl
)
# What all ranks say when they have asked each other, and one of them could not go on.
OF_ONE = re.compile(r"^error: rank (\d{1,9}) on ", re.MULTILINE)


@dataclass(frozen=True)
class RankEnd:
    """What is known of a rank that failed. Of its exceptions the first counts."""

    rank: int
    raised: Raised | None = None
    exited: Exited | None = None

    @property
    def is_consequence(self) -> bool:
        """Whether its words say that it was another one that went away; a backend may say so in
        its log and abort."""
        if self.exited and self.exited.oom:
            return False
        aborted = self.exited and self.exited.signal == "SIGABRT"
        text = (self.raised and self.raised.text) or (self.exited.text if aborted and self.exited else "")
        other = OF_ONE.search(text)
        return bool(CONSEQUENCES.search(text) or (other and int(other[1]) != self.rank))

    def failure(self, node: str | None) -> Failure:
        """`node`: where it is planned, if that is known."""
        end = self.exited
        return Failure(
            rank=self.rank,
            node=node or (end.node if end else None),
            code=end.code if end else None,
            signal=end.signal if end else None,
            oom=end.oom if end else None,
            text=(self.raised.text if self.raised else "") or (end.text if end else ""),
            time=self.raised.time if self.raised else end.time if end else None,
        )


def rank_ends(events: Iterable[Event]) -> dict[int, RankEnd]:
    """The ranks that failed, in the order in which it became known."""
    found: dict[int, RankEnd] = {}
    for event in events:
        take(found, event)
    return found


def take(found: dict[int, RankEnd], event: Event) -> None:
    """Add what the event tells of the failure of its rank, if it does."""
    known = found.get(event.rank, RankEnd(event.rank))
    if isinstance(event, Raised):  # of rank -1: of one that never learnt its number
        found[event.rank] = RankEnd(event.rank, known.raised or event, known.exited)
    elif isinstance(event, Exited) and (event.bad or known.raised):
        found[event.rank] = RankEnd(event.rank, known.raised, event)


def culprit(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The rank that failed first; those that only lost a peer come after those that did not."""
    return min(ends, key=lambda end: end.is_consequence, default=None)  # of equals the first


def first_failure(ends: Mapping[int, RankEnd], nodes: Mapping[int, str]) -> Failure | None:
    """`nodes`: rank -> where it is planned."""
    found = culprit(ends.values())
    return found.failure(nodes.get(found.rank)) if found else None
