"""The events of a run that make its timeline, as lines in their order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orch_node.protocol.events import (
    Decided,
    Ended,
    Event,
    Failed,
    Finished,
    Joined,
    Launched,
    NodeNews,
    NodesLost,
    Refused,
    Restarting,
    Stalled,
    Stopping,
    Waiting,
    Warned,
)
from orch_node.protocol.record import number_ranges

RANK = re.compile(r"[0-9]{1,9}")
Said = Decided | NodeNews | NodesLost | Refused | Stopping | Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`time`: since the epoch."""

    time: float
    text: str


class FailedRank(Protocol):
    """What is told of a rank that failed, wherever it was learnt."""

    @property
    def rank(self) -> int: ...
    @property
    def node(self) -> str | None: ...
    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> str | None: ...
    @property
    def oom(self) -> str | None: ...


def timeline_of(events: Iterable[Event]) -> list[Moment]:
    """What the supervisor told and what the ranks did together."""
    there: set[int] = set()
    ranks = 0
    found: list[Moment] = []
    warned: set[str] = set()
    for event in events:
        if isinstance(event, Launched):
            there, ranks = set(), event.ranks
        if is_echo(event, warned):
            continue
        found += (Moment(time=event.time, text=text) for text in words(event))
        if isinstance(event, Joined) and event.rank not in there:
            there.add(event.rank)
            if len(there) == ranks:
                found.append(Moment(time=event.time, text=joined(ranks, event)))
    return found


def joined(ranks: int, last: Joined) -> str:
    """That all have joined."""
    return f"{f'all {ranks} ranks' if ranks > 1 else '1 rank'} joined on {last.backend}"


def words(event: Event) -> Iterator[str]:
    """What there is to say of one event."""
    tell = WORDS.get(type(event))
    if tell is not None:
        yield from tell(event)


def is_echo(event: Event, warned: set[str]) -> bool:
    """Whether it is a warning that another rank has given, too; `warned` grows by what is new."""
    if not isinstance(event, Warned):
        return False
    known = event.text in warned
    warned.add(event.text)
    return known


def told_by_rank(event: Warned) -> Iterator[str]:
    yield f"rank {event.rank}: {event.text}"


def launched(event: Launched) -> Iterator[str]:
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    yield f"started {event.ranks} ranks on {', '.join(event.nodes)}{again}"


def said(event: Said) -> Iterator[str]:
    yield event.text


def failed(event: Failed) -> Iterator[str]:
    if event.failure:
        yield how_it_failed(event.failure)


def how_it_failed(failure: FailedRank) -> str:
    where = f"rank {failure.rank} on {failure.node}"
    if failure.signal:
        memory = f": memory ran out ({failure.oom})" if failure.oom else ""
        return f"{where} was ended by {failure.signal}{memory}"
    if failure.code is not None:
        return f"{where} exited with code {failure.code}"
    return f"{where} failed"


def stalled(event: Stalled) -> Iterator[str]:
    yield event.text
    same: dict[str, list[int]] = {}
    for rank, stand in event.stands.items():
        if RANK.fullmatch(rank):
            same.setdefault(stand, []).append(int(rank))
    for stand, ranks in same.items():
        yield f"  rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}: {stand}"


def ended(event: Ended) -> Iterator[str]:
    for node, found in event.nodes.items():
        if found.lost is not None:
            yield f"{node}: {found.lost}"
        elif found.left:
            pids = ", ".join(str(process.pid) for process in found.left)
            yield f"{node}: {len(found.left)} processes did not end: {pids}"
        else:
            yield f"{node}: ended {found.ended} processes in {found.seconds:.1f} s, none left"


def restarting(event: Restarting) -> Iterator[str]:
    yield f"starts again: attempt {event.attempt} of {event.of + 1}"


def finished(event: Finished) -> Iterator[str]:
    yield event.state


WORDS: Mapping[type[Event], Callable[[Any], Iterator[str]]] = {
    **dict.fromkeys((Decided, NodeNews, NodesLost, Refused, Stopping, Waiting), said),
    Ended: ended,
    Failed: failed,
    Finished: finished,
    Launched: launched,
    Restarting: restarting,
    Stalled: stalled,
    Warned: told_by_rank,
}


def lines(found: Sequence[Moment]) -> list[str]:
    """With the time of day and the seconds since the first of them."""
    return [
        f"{time.strftime('%H:%M:%S', time.localtime(one.time))} +{one.time - found[0].time:7.1f}s  {one.text}"
        for one in found
    ]
