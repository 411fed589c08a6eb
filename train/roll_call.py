"""What is known of the ranks of one attempt: who joined, who is behind, who failed first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
# What a rank says when another one went away: it fails too, but it is not the culprit.
CONSEQUENCES = re.compile(
    r"Connection (?:closed by|reset by) peer|Connection closed by remote peer|Broken pipe"
    r"|Failed to recv, got 0 bytes|Read error \[|Write error \[|Application timeout caused pair"
    r"|Timed out waiting \d+ms for|ProcessGroupWrapper|failed to connect|wait timeout after"
)
# What all ranks say when they have asked each other, and one of them could not go on.
OF_ONE = re.compile(r"^error: rank (\d+) on ", re.MULTILINE)
SIGNS = ("started", "joined", "progress", "result", "pulse", "exit")


class RollCall:
    """The ranks of a layout, and what their events have told. Times are of the caller's clock."""

    def __init__(self, layout: dict[str, Any], now: float) -> None:
        self.places = {place["rank"]: place["node"] for place in layout["ranks"]}
        self.heard = now
        self.started: dict[int, Event] = {}
        self.joined: set[int] = set()
        self.exits: dict[int, Event] = {}
        self.exceptions: dict[int, Event] = {}
        self.failed: list[int] = []  # in the order in which it became known
        self.pulses: dict[int, Event] = {}
        self.progress: dict[int, Event] = {}

    def take(self, event: Event, now: float) -> None:
        rank, kind = event["rank"], event["event"]
        if kind in SIGNS:
            self.heard = now
        if kind == "started":
            self.started[rank] = event
        elif kind == "joined":
            self.joined.add(rank)
        elif kind == "pulse":
            self.pulses[rank] = event
        elif kind == "progress":
            self.progress[rank] = event
        elif kind == "exception":
            self.exceptions.setdefault(rank, event)
            self.note_failure(rank)
        elif kind == "exit":
            self.exits[rank] = event
            if (event["code"] or event["signal"]) and not event["stopped"]:
                self.note_failure(rank)

    def note_failure(self, rank: int) -> None:
        if rank not in self.failed:
            self.failed.append(rank)

    def first_failure(self) -> dict[str, Any] | None:
        """The rank that failed first; one that only lost its peer comes after those that did not.

        `code` and `signal` are None while the rank's end has not been reported.
        """
        if not self.failed:
            return None
        rank = min(self.failed, key=lambda one: (self.is_consequence(one), self.failed.index(one)))
        end = self.exits.get(rank, {})
        return {
            "rank": rank,
            "node": self.places.get(rank),
            "code": end.get("code"),
            "signal": end.get("signal"),
            "oom": end.get("oom"),
            "text": self.exceptions.get(rank, {}).get("text") or end.get("text", ""),
            "time": self.exceptions.get(rank, end).get("time"),
        }

    def is_consequence(self, rank: int) -> bool:
        """Whether the rank's words say that it was another one that went away; a backend may say
        so in its log and abort."""
        end = self.exits.get(rank, {})
        aborted = end.get("text", "") if end.get("signal") == "SIGABRT" else ""
        text = self.exceptions.get(rank, {}).get("text") or aborted
        other = OF_ONE.search(text)
        return bool(CONSEQUENCES.search(text) or (other and int(other[1]) != rank))

    def undecided(self) -> bool:
        """Whether more may become known of the first failure: its exit code, or who caused it."""
        first = self.first_failure()
        return first is not None and (first["code"] is None or self.is_consequence(first["rank"]))

    def unfinished(self) -> list[int]:
        return sorted(set(self.places) - set(self.exits))

    def waiting_to_join(self) -> bool:
        return len(self.joined) < len(self.places)

    def quiet(self, now: float) -> float:
        """Seconds since the last sign of life of any rank."""
        return now - self.heard

    def absent(self) -> str:
        """Who is missing or behind, in one line."""
        missing = sorted(set(self.places) - self.joined)
        if missing:
            words = f"{len(self.joined)} of {len(self.places)} ranks joined"
            return f"{words}; missing: {self.name(missing)}"
        waiting = self.unfinished()
        counts = {rank: self.pulses.get(rank, {}).get("collectives", 0) for rank in waiting}
        furthest = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < furthest]
        ended = len(self.places) - len(waiting)
        told = [f"{ended} of {len(self.places)} ranks have ended"] if ended else []
        if behind:
            ahead = len(waiting) - len(behind)
            told.append(f"{ahead} of {len(self.places)} ranks wait in collective {furthest}")
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
            by_node.setdefault(self.places[rank], []).append(rank)
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
