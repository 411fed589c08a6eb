"""Find the rank that caused the end of a run. All programs that watch ranks use this rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from orch_node.protocol.events import Event, Exited, Raised
from orch_node.protocol.outcome import Failure

# Messages of a rank that fails because another rank has ended; it is not the cause.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("failure_messages.json").read_text())
CONSEQUENCES = re.compile("|".join(chain.from_iterable(MESSAGES.values())))
# The message with which NCCL's watchdog ends a rank that waits for others in a collective for too long.
COLLECTIVE_TIMEOUT = re.compile(r"collective operation timeout: Work\w*\([^)\n]*Timeout\(ms\)=(\d{1,12})")
# The message of all ranks after they found out together that one of them cannot continue.
OTHER_RANK_FAILED = re.compile(r"^error: rank (\d{1,9}) on ", re.MULTILINE)
# The frames in which torch.distributed.elastic describes the failure of processes that it has started itself.
ELASTIC_FRAME = re.compile(r"^(?:[=-]{20,}|  traceback : To enable traceback .*)(?:\n|$)", re.MULTILINE)


def without_frames(text: str) -> str:
    """Return the text without the lines that frame failures of elastic."""
    return ELASTIC_FRAME.sub("", text).rstrip("\n")


def blames_another(rank: int, text: str) -> bool:
    """Return whether the message of a failed rank shows that another rank has ended before."""
    cause = OTHER_RANK_FAILED.search(text)
    return bool(CONSEQUENCES.search(text) or (cause and int(cause[1]) != rank))


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank that failed; of several exceptions, the first."""

    rank: int
    raised: Raised | None = None
    exited: Exited | None = None

    @property
    def is_consequence(self) -> bool:
        """Return whether its messages show that another rank has ended before.

        A backend may write such a message to the log and abort.
        """
        if self.exited and self.exited.oom:
            return False
        return self.timeout_seconds is not None or blames_another(self.rank, self.text)

    @property
    def text(self) -> str:
        """Return the exception, or what a rank that was aborted has written last."""
        aborted = self.exited and self.exited.signal == "SIGABRT"
        return (self.raised and self.raised.text) or (self.exited.text if aborted and self.exited else "")

    @property
    def timeout_seconds(self) -> float | None:
        """Return the timeout of the collective in which the rank has waited too long; None if it ended otherwise."""
        match = COLLECTIVE_TIMEOUT.search(self.text)
        return int(match[1]) / 1000 if match else None

    def failure(self, node: str | None) -> Failure:
        """Return the end as a failure.

        Args:
            node: where the rank is planned, if that is known.
        """
        end, first = self.exited, self.raised or self.exited
        text = (self.raised and self.raised.text) or (end and end.text) or ""
        failure = Failure(self.rank, node, text=without_frames(text), time=first.time if first else None)
        if end is None:
            return failure
        return replace(failure, node=node or end.node, code=end.code, signal=end.signal, oom=end.oom)


def rank_ends(events: Iterable[Event]) -> dict[int, RankEnd]:
    """Return the ranks that failed, in the order of their reports."""
    ends: dict[int, RankEnd] = {}
    for event in events:
        add_event(ends, event)
    return ends


def add_event(ends: dict[int, RankEnd], event: Event) -> None:
    """Add the event to the ends of ranks if it belongs to a failure."""
    rank_end = ends.get(event.rank, RankEnd(event.rank))
    if isinstance(event, Raised):  # rank -1 has ended before it knew its number
        ends[event.rank] = RankEnd(event.rank, rank_end.raised or event, rank_end.exited)
    elif isinstance(event, Exited) and (event.is_failure or rank_end.raised):
        ends[event.rank] = RankEnd(event.rank, rank_end.raised, event)


def first_cause(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the first failure, preferring ranks that did not only lose a peer."""
    return min(ends, key=lambda end: end.is_consequence, default=None)  # min returns the first of equal ends


def first_failure(ends: Mapping[int, RankEnd], nodes: Mapping[int, str]) -> Failure | None:
    """Return the failure that caused the others, or None.

    Args:
        ends: of the ranks that failed.
        nodes: the planned node of each rank.
    """
    cause = first_cause(ends.values())
    return cause.failure(nodes.get(cause.rank)) if cause else None
