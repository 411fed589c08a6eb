"""The timeline of a run: its important events as lines of text in their order."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orch_node.protocol import events as kinds
from orch_node.protocol.node_names import fold, fold_by_text, grouped
from orch_node.protocol.outcome import Failure
from orch_node.protocol.record import number_ranges

from orchestrator.model.printable import counted
from orchestrator.runs.tracebacks import summary

RANK = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A line of the timeline.

    Attributes:
        time: the time in seconds since the epoch.
        text: the description of the event.
    """

    time: float
    text: str


def timeline_of(events: Iterable[kinds.Event]) -> list[Moment]:
    """Return the events of the supervisor and the events that all ranks share, as lines of text."""
    joined_ranks: set[int] = set()
    ranks = 0
    timeline: list[Moment] = []
    warned: set[str] = set()
    for event in events:
        if isinstance(event, kinds.Launched):
            joined_ranks, ranks = set(), event.ranks
        if is_echo(event, warned):
            continue
        timeline += (Moment(time=event.time, text=text) for text in describe_event(event))
        if isinstance(event, kinds.Failed) and event.failure and (cause := summary(event.failure.text)):
            timeline.append(Moment(time=event.time, text=f"  {cause}"))
        if isinstance(event, kinds.Joined) and event.rank not in joined_ranks:
            joined_ranks.add(event.rank)
            if len(joined_ranks) == ranks:
                timeline.append(Moment(time=event.time, text=joined(ranks, event)))
    return timeline


def joined(ranks: int, last: kinds.Joined) -> str:
    """Return a line that says that all ranks have joined."""
    return f"{f'all {ranks} ranks' if ranks > 1 else '1 rank'} joined on {last.backend}"


def describe_event(event: kinds.Event) -> Iterator[str]:
    """Yield the lines that describe an event; none for events that a timeline does not have."""
    match event:
        case kinds.Decided() | kinds.NodeNews() | kinds.NodesLost():
            yield event.text
        case kinds.Refused() | kinds.Stopping() | kinds.Waiting():
            yield event.text
        case kinds.Warned():
            yield f"rank {event.rank}: {event.text}"
        case kinds.Launched():
            suffix = f" (attempt {event.attempt})" if event.attempt > 1 else ""
            yield f"started {counted(event.ranks, 'rank')} on {fold(event.nodes)}{suffix}"
        case kinds.Failed(failure=Failure() as failure):
            yield how_it_failed(failure)
        case kinds.Stalled():
            yield from describe_stall(event)
        case kinds.Ended():
            yield from describe_cleanup(event)
        case kinds.Restarting():
            yield f"starts again: attempt {event.attempt} of {event.of + 1}"
        case kinds.Finished():
            yield event.state


def is_echo(event: kinds.Event, warned: set[str]) -> bool:
    """Return whether another rank has given the same warning, and add a new warning to `warned`."""
    if not isinstance(event, kinds.Warned):
        return False
    is_known = event.text in warned
    warned.add(event.text)
    return is_known


def how_it_failed(failure: Failure) -> str:
    """Return how a rank failed: by a signal, with an exit code, or in an unknown way."""
    location = f"rank {failure.rank} on {failure.node}" if failure.rank >= 0 else "a process without a rank"
    if failure.signal:
        memory = f": memory ran out ({failure.oom})" if failure.oom else ""
        return f"{location} was ended by {failure.signal}{memory}"
    return f"{location} failed" if failure.code is None else f"{location} exited with code {failure.code}"


def describe_stall(event: kinds.Stalled) -> Iterator[str]:
    """Yield the message about a stall and a line for each group of ranks in the same state."""
    yield event.text
    states = ((state, int(rank)) for rank, state in event.stands.items() if RANK.fullmatch(rank))
    for state, ranks in grouped(states).items():
        yield f"  rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}: {state}"


def describe_cleanup(event: kinds.Ended) -> Iterator[str]:
    """Yield a line about the processes that were ended on each node, or on nodes with the same result."""
    texts = {}
    for node, end in event.nodes.items():
        pids = ", ".join(str(process.pid) for process in end.left)
        unfinished = f"{counted(len(end.left), 'process')} did not end: {pids}"
        ended = f"ended {counted(end.ended, 'process')}, none left"
        texts[node] = end.lost or (unfinished if end.left else ended)
    yield from (f"{nodes}: {text}" for nodes, text in fold_by_text(texts))


def lines(moments: Sequence[Moment]) -> list[str]:
    """Return the moments as lines with the time of day and the seconds since the first moment."""
    return [
        f"{time.strftime('%H:%M:%S', time.localtime(entry.time))} +{entry.time - moments[0].time:7.1f}s  {entry.text}"
        for entry in moments
    ]
