"""Events of a run -> a chart with a row for each rank, and the timeline in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orch_node.protocol.events import Event, Exited, FirstStep, Joined, Progress, Raised, Started

from orchestrator.report.smooth import time_unit
from orchestrator.report.traces import Chart, Trace, axis, hover, plain
from orchestrator.runs.measures import Measures
from orchestrator.runs.timeline import Moment, timeline_of

# An event of a rank begins a part of its life, which has a colour.
PARTS: dict[type[Event], str] = {Started: "starting", Joined: "preparing", FirstStep: "training"}
LEGEND = {
    "starting": "starting, joining",
    "preparing": "joined, before its first step",
    "training": "from the first step on",
    "bad": "failed",
}
COLOURS = {part: f"--{part}" for part in LEGEND} | {"bad": "--hot"}
RANKS = 64
LETTER = 0.032  # of the width of a chart on a screen of 400 pixels
FEW = 24  # ranks with a higher row
REPEATED = 3
EVENTS, PHASES = "events", "phase"  # rows above those of the ranks

Span = tuple[str, float, float, str]  # row, begin, end, what is told of it


def timeline(measured: Measures) -> Chart | None:
    """None without events."""
    times = [event.time for event in measured.events if event.time]
    if not times:
        return None
    last = max(times) - measured.began
    unit, name = time_unit(last)
    ranks = rows(measured)
    height = 18 if len(ranks) <= FEW else 13
    found = list(phases(measured))
    phase_spans = [(PHASES, begin, end, f"{phase}: {end - begin:.1f} s") for begin, end, phase in found]
    parts = by_part(measured, ranks, last)
    events = timeline_of(measured.events)
    return Chart(
        title="Timeline",
        note=f"{len(measured.ranks) - RANKS} more ranks are not drawn." if len(measured.ranks) > RANKS else "",
        data=(
            *([happened(events, measured.began, unit)] if events else ()),
            {
                **bars("phases of rank 0", "--phase", phase_spans, unit),
                "text": [plain(phase) if fits(phase, (end - begin) / last) else "" for begin, end, phase in found],
                "textposition": "inside",
                "insidetextanchor": "start",
                "constraintext": "none",
            },
            *(bars(LEGEND[part], COLOURS[part], spans, unit) for part, spans in parts.items() if spans),
        ),
        layout=layout([*([EVENTS] if events else ()), PHASES, *map(row, ranks)], name),
        height=150 + height * (len(ranks) + 2),
    )


def fits(text: str, share: float) -> bool:
    """Whether a bar of that share of the chart has room for the text, on a narrow screen, too."""
    return share > LETTER * len(text)


def layout(names: Sequence[str], unit: str) -> dict[str, object]:
    return {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": axis(f"time since the start, {unit}", rangemode="nonnegative"),
        "yaxis": axis(
            type="category",
            categoryorder="array",
            categoryarray=list(names),
            fixedrange=True,
            range=[len(names) - 0.5, -0.5],
            dtick=1,
            showgrid=False,
            tickfont={"size": 12 if len(names) <= FEW else 10},
        ),
    }


def row(rank: int) -> str:
    return f"rank {rank}"


def by_part(measured: Measures, ranks: Iterable[int], last: float) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {part: [] for part in LEGEND}
    for rank in ranks:
        for begin, end, part in lives(measured, rank, last):
            told = f"{row(rank)}: {LEGEND[part]}, {end - begin:.1f} s"
            found[part].append((row(rank), begin, end, told))
    return found


def bars(name: str, colour: str, spans: Iterable[Span], unit: float) -> Trace:
    spans = list(spans)
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "marker": {"color": colour},
        "y": [span[0] for span in spans],
        "base": [span[1] / unit for span in spans],
        "x": [(end - begin) / unit for _, begin, end, _ in spans],
        "hovertext": [hover(span[3]) for span in spans],
        "hoverinfo": "text",
    }


def happened(found: Sequence[Moment], began: float, unit: float) -> Trace:
    """A mark for each moment of the timeline."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "what happened",
        "marker": {"color": "--ink", "symbol": "diamond", "size": 8},
        "x": [(one.time - began) / unit for one in found],
        "y": [EVENTS] * len(found),
        "hovertext": [hover(one.text) for one in found],
        "hoverinfo": "text",
    }


def rows(measured: Measures) -> list[int]:
    """The ranks that are drawn: all, or the failed ones and the first."""
    ranks = [rank.rank for rank in measured.ranks]
    failed = {event.rank for event in measured.events if bad(event)}
    return sorted(sorted(ranks, key=lambda rank: (rank not in failed, rank))[:RANKS])


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
