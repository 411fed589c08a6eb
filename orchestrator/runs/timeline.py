"""The events of a run that make its timeline, as lines in their order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orch_node.protocol.record import cpu_list

Event = Mapping[str, Any]


def timeline_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """{time, text} of what the supervisor told and what the ranks did together."""
    joined: set[int] = set()
    ranks = 0
    found: list[dict[str, Any]] = []
    warned: set[str] = set()
    for event in events:
        if event["event"] == "launched":
            joined, ranks = set(), event["ranks"]
        if is_echo(event, warned):
            continue
        for text in words(event):
            found.append({"time": event["time"], "text": text})
        if event["event"] == "joined":
            joined.add(event["rank"])
            if len(joined) == ranks:
                text = f"all {ranks} ranks joined on {event['backend']}"
                found.append({"time": event["time"], "text": text})
    return found


def words(event: Event) -> Iterator[str]:
    """What there is to say of one event."""
    tell = WORDS.get(event["event"])
    if tell is not None:
        yield from tell(event)


def is_echo(event: Event, warned: set[str]) -> bool:
    """Whether it is a warning that another rank has given, too; `warned` grows by what is new."""
    if event["event"] != "warning":
        return False
    known = event["text"] in warned
    warned.add(event["text"])
    return known


def told_by_rank(event: Event) -> Iterator[str]:
    yield f"rank {event['rank']}: {event['text']}"


def launched(event: Event) -> Iterator[str]:
    again = f" (attempt {event['attempt']})" if event["attempt"] > 1 else ""
    yield f"started {event['ranks']} ranks on {', '.join(event['nodes'])}{again}"


def said(event: Event) -> Iterator[str]:
    yield str(event["text"])


def failed(event: Event) -> Iterator[str]:
    yield how_it_failed(event["failure"])


def how_it_failed(failure: Mapping[str, Any]) -> str:
    where = f"rank {failure['rank']} on {failure['node']}"
    if failure["signal"]:
        memory = f": memory ran out ({failure['oom']})" if failure.get("oom") else ""
        return f"{where} was ended by {failure['signal']}{memory}"
    if failure["code"] is not None:
        return f"{where} exited with code {failure['code']}"
    return f"{where} failed"


def stalled(event: Event) -> Iterator[str]:
    yield str(event["text"])
    same: dict[str, list[int]] = {}
    for rank, stand in event.get("stands", {}).items():
        same.setdefault(stand, []).append(int(rank))
    for stand, ranks in same.items():
        yield f"  rank{'s' * (len(ranks) > 1)} {cpu_list(tuple(ranks))}: {stand}"


def ended(event: Event) -> Iterator[str]:
    for node, found in event["nodes"].items():
        if "lost" in found:
            yield f"{node}: {found['lost']}"
        elif found["left"]:
            pids = ", ".join(str(process["pid"]) for process in found["left"])
            yield f"{node}: {len(found['left'])} processes did not end: {pids}"
        else:
            yield f"{node}: ended {found['ended']} processes in {found['seconds']:.1f} s, none left"


def restarting(event: Event) -> Iterator[str]:
    yield f"starts again: attempt {event['attempt']} of {event['of'] + 1}"


def finished(event: Event) -> Iterator[str]:
    yield str(event["state"])


WORDS = {
    "refused": said,
    "waiting": said,
    "stopping": said,
    "launched": launched,
    "node": said,
    "decision": said,
    "failed": failed,
    "warning": told_by_rank,
    "lost": said,
    "stalled": stalled,
    "ended": ended,
    "restarting": restarting,
    "finished": finished,
}


def lines(found: list[dict[str, Any]]) -> list[str]:
    """With the time of day and the seconds since the first of them."""
    return [
        f"{time.strftime('%H:%M:%S', time.localtime(one['time']))} "
        f"+{one['time'] - found[0]['time']:7.1f}s  {one['text']}"
        for one in found
    ]
