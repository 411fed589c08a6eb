"""Events of a run -> a chart with a row for each rank, and the timeline in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch_node.protocol.events import (
    Event,
    Exited,
    FirstStep,
    Joined,
    Progress,
    Raised,
    Started,
)

from orchestrator.report.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Bar, Chart, Line, Text
from orchestrator.report.scales import exact, time_unit
from orchestrator.runs.measures import Measures
from orchestrator.runs.timeline import timeline_of

# An event of a rank begins a part of its life, which has a colour.
PARTS: dict[type[Event], str] = {
    Started: "starting",
    Joined: "preparing",
    FirstStep: "training",
}
LEGEND = (
    ("starting", "starting, joining"), ("preparing", "joined, before its first step"),
    ("training", "from the first step on"), ("bad", "failed"),
)  # fmt: skip
ROWS = 64
REPEATED = 3
CHARACTER = 6.6  # pixels, at the size of a label


def timeline(measured: Measures) -> Chart | None:
    """None without events."""
    events = [event for event in measured.events if event.time]
    if not events:
        return None
    last = max(event.time for event in events) - measured.began
    unit, name = time_unit(last)
    x = exact(0.0, last / unit, LEFT, WIDTH - RIGHT)
    ranks = rows(measured)
    height = 18.0 if len(ranks) <= 24 else 8.0
    bars: list[Bar] = []
    texts: list[Text] = []
    for begin, end, phase in phases(measured):
        left, right = x.at(begin / unit), x.at(end / unit)
        bars.append(Bar(x=left, y=TOP, width=max(right - left - 1, 1), height=18, css="bar phase",
                        title=f"{phase}: {end - begin:.1f} s"))  # fmt: skip
        if right - left > CHARACTER * len(phase) + 8:
            texts.append(Text(x=left + 4, y=TOP + 13, text=phase, css="inside", anchor="start"))
    first = TOP + 26
    for index, rank in enumerate(ranks):
        for begin, end, css in lives(measured, rank, last):
            left, right = x.at(begin / unit), x.at(end / unit)
            bars.append(
                Bar(x=left, y=first + index * height + 1, width=max(right - left, 1.5),
                    height=height - 2, css=f"bar {css}",
                    title=f"rank {rank}: {css}, {end - begin:.1f} s")
            )  # fmt: skip
    floor = first + len(ranks) * height
    every = max(1, round(14 / height))
    marks = [event.time - measured.began for event in events if event.rank < 0]
    return Chart(
        title="Timeline", x_label=f"time since the start, {name}", y_label="",
        x_ticks=x.ticks(),
        y_ticks=(
            (TOP + 9, "phase"),
            *((first + (index + 0.5) * height, f"rank {rank}")
              for index, rank in enumerate(ranks) if index % every == 0),
        ),
        note=f"{len(measured.ranks) - ROWS} more ranks are not drawn."
        if len(measured.ranks) > ROWS else "",
        height=floor + BOTTOM, legend=LEGEND, bars=tuple(bars), texts=tuple(texts), grid=False,
        lines=tuple(
            Line(points=((x.at(at / unit), TOP), (x.at(at / unit), floor)), css="usual")
            for at in marks
        ),
    )  # fmt: skip


def rows(measured: Measures) -> list[int]:
    """The ranks that are drawn: all, or the failed ones and the first."""
    ranks = [rank.rank for rank in measured.ranks]
    failed = {event.rank for event in measured.events if bad(event)}
    return sorted(sorted(ranks, key=lambda rank: (rank not in failed, rank))[:ROWS])


def bad(event: Event) -> bool:
    """A rank's own failure, not one that was stopped because of another's."""
    return event.bad if isinstance(event, Exited) else isinstance(event, Raised)


def phases(measured: Measures) -> Iterator[tuple[float, float, str]]:
    """(begin, end, name) of what rank 0 was at."""
    told = [e for e in measured.events if isinstance(e, Progress) and e.rank == 0]
    ended = [e for e in measured.events if isinstance(e, Exited) and e.rank == 0]
    begin, name = None, ""
    for event in (*told, *ended[-1:]):
        at = event.time - measured.began
        phase = (event.phase or "") if isinstance(event, Progress) else ""
        if begin is None or phase != name:
            if begin is not None:
                yield begin, at, name
            begin, name = at, phase
    if begin is not None and name:
        yield begin, max(event.time for event in told) - measured.began, name


def lives(measured: Measures, rank: int, last: float) -> Iterator[tuple[float, float, str]]:
    """(begin, end, part) of a rank's life; a rank that was restarted has several."""
    begin, part = 0.0, ""
    for event in (event for event in measured.events if event.rank == rank):
        at = event.time - measured.began
        if type(event) in PARTS or isinstance(event, Exited):
            if part:
                yield begin, at, part
            begin, part = at, PARTS.get(type(event), "")
        if bad(event) and isinstance(event, Exited):
            yield max(at - last * 0.008, 0.0), at, "bad"
    if part:
        yield begin, last, part


def moments(measured: Measures) -> list[tuple[str, str]]:
    """(time since the start, what happened): the timeline, and what the ranks were at."""
    told = [(one.time - measured.began, one.text) for one in timeline_of(measured.events)]
    told += [*milestones(measured), *phase_beginnings(measured)]
    return [(f"{at:.1f} s", words) for at, words in sorted(told, key=lambda one: one[0])]


def phase_beginnings(measured: Measures) -> Iterator[tuple[float, str]]:
    """Each phase of rank 0; of one that comes again and again only the first."""
    found: dict[str, list[float]] = {}
    for begin, _, name in phases(measured):
        found.setdefault(name, []).append(begin)
    for name, times in found.items():
        if len(times) > REPEATED:
            yield times[0], f"rank 0: {name} (the first of {len(times)} times)"
        else:
            yield from ((at, f"rank 0: {name}") for at in times)


def milestones(measured: Measures) -> Iterator[tuple[float, str]]:
    """When the last rank had made its first step."""
    found = (e for e in reversed(measured.events) if isinstance(e, FirstStep))
    times = {event.rank: event.time for event in found}
    size = len(measured.ranks)
    if len(times) == size:
        rank = max(times, key=lambda rank: times[rank])
        tail = f" (rank {rank} was the last)" if size > 1 else ""
        yield times[rank] - measured.began, f"first step made{tail}"
