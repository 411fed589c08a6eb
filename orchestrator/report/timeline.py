"""The chart of a run's events with a row for each rank, and the timeline as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orch_node.protocol.events import Event, Exited, FirstStep, Joined, Progress, Raised, Started

from orchestrator.model.printable import counted
from orchestrator.report.traces import Chart, Trace, axis, hover, plain, time_unit
from orchestrator.runs.measures import Measures
from orchestrator.runs.timeline import Moment, timeline_of

# Each of these events begins a part of a rank's life, which has a colour.
RANK_PHASES: dict[type[Event], str] = {Started: "starting", Joined: "preparing", FirstStep: "training"}
LEGEND = {
    "starting": "starting, joining",
    "preparing": "joined, before its first step",
    "training": "from the first step on",
    "failed": "failed",
}
COLOURS = {part: f"--{part}" for part in LEGEND} | {"failed": "--hot"}
MAX_DRAWN_RANKS = 64
LETTER_WIDTH = 0.032  # width of a letter as a share of a chart on a screen of 400 pixels
MAX_TALL_ROWS = 24  # Up to this number of ranks the rows are higher.
MAX_REPEATED_PHASES = 3
EVENTS, PHASES = "events", "phase"  # rows above the rows of the ranks

Span = tuple[str, float, float, str]  # row, begin, end, description


def timeline(measured: Measures) -> Chart | None:
    """Return the chart of the events, or None if there are none."""
    times = [event.time for event in measured.events if event.time]
    if not times:
        return None
    last = max(times) - measured.began
    unit, name = time_unit(last)
    ranks = drawn_ranks(measured)
    hidden = len(measured.ranks) - len(ranks)
    height = 18 if len(ranks) <= MAX_TALL_ROWS else 13
    rank0_phases = list(phases(measured))
    phase_spans = [(PHASES, begin, end, f"{phase}: {end - begin:.1f} s") for begin, end, phase in rank0_phases]
    parts = spans_by_phase(measured, ranks, last)
    events = timeline_of(measured.events)
    return Chart(
        title="Timeline",
        note=f"Not drawn: {counted(hidden, 'more rank')}." if hidden else "",
        data=(
            *([events_trace(events, measured.began, unit)] if events else ()),
            {
                **bars("phases of rank 0", "--phase", phase_spans, unit),
                "text": [
                    plain(phase) if fits(phase, (end - begin) / last) else "" for begin, end, phase in rank0_phases
                ],
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
    """Return whether a bar with this share of the chart has room for the text on a narrow screen."""
    return share > LETTER_WIDTH * len(text)


def layout(names: Sequence[str], unit: str) -> dict[str, object]:
    """Return a layout with a row for each name."""
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
            tickfont={"size": 12 if len(names) <= MAX_TALL_ROWS else 10},
        ),
    }


def row(rank: int) -> str:
    """Return the name of a rank's row."""
    return f"rank {rank}"


def spans_by_phase(measured: Measures, ranks: Iterable[int], last: float) -> dict[str, list[Span]]:
    """Return the spans of all ranks by part of a rank's life."""
    spans: dict[str, list[Span]] = {part: [] for part in LEGEND}
    for rank in ranks:
        for begin, end, part in rank_phases(measured, rank, last):
            description = f"{row(rank)}: {LEGEND[part]}, {end - begin:.1f} s"
            spans[part].append((row(rank), begin, end, description))
    return spans


def bars(name: str, colour: str, spans: Iterable[Span], unit: float) -> Trace:
    """Return a horizontal bar for each span."""
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


def events_trace(events: Sequence[Moment], began: float, unit: float) -> Trace:
    """Return a mark for each moment of the timeline."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "what happened",
        "marker": {"color": "--ink", "symbol": "diamond", "size": 8},
        "x": [(moment.time - began) / unit for moment in events],
        "y": [EVENTS] * len(events),
        "hovertext": [hover(moment.text) for moment in events],
        "hoverinfo": "text",
    }


def drawn_ranks(measured: Measures) -> list[int]:
    """Return the ranks to draw: all, or MAX_DRAWN_RANKS of them, the failed ones first."""
    ranks = [rank.rank for rank in measured.ranks]
    failed = {event.rank for event in measured.events if is_failure(event)}
    return sorted(sorted(ranks, key=lambda rank: (rank not in failed, rank))[:MAX_DRAWN_RANKS])


def is_failure(event: Event) -> bool:
    """Return whether an event is a rank's own failure, not a stop caused by another rank's failure."""
    return event.is_failure if isinstance(event, Exited) else isinstance(event, Raised)


def phases(measured: Measures) -> Iterator[tuple[float, float, str]]:
    """Yield the begin, the end and the name of each phase of rank 0."""
    reports = [e for e in measured.events if isinstance(e, Progress) and e.rank == 0]
    ended = [e for e in measured.events if isinstance(e, Exited) and e.rank == 0]
    begin, name = None, ""
    for event in (*reports, *ended[-1:]):
        time = event.time - measured.began
        phase = (event.phase or "") if isinstance(event, Progress) else ""
        if begin is None or phase != name:
            if begin is not None:
                yield begin, time, name
            begin, name = time, phase
    if begin is not None and name:
        yield begin, max(event.time for event in reports) - measured.began, name


def rank_phases(measured: Measures, rank: int, last: float) -> Iterator[tuple[float, float, str]]:
    """Yield the begin, the end and the name of each part of a rank's life; a restarted rank begins again."""
    begin, part = 0.0, ""
    for event in (event for event in measured.events if event.rank == rank):
        time = event.time - measured.began
        if type(event) in RANK_PHASES or isinstance(event, Exited):
            if part:
                yield begin, time, part
            begin, part = time, RANK_PHASES.get(type(event), "")
        if is_failure(event) and isinstance(event, Exited):
            yield max(time - last * 0.008, 0.0), time, "failed"
    if part:
        yield begin, last, part


def moments(measured: Measures) -> list[tuple[str, str]]:
    """Return the timeline with the phases of the ranks, each as (time since the start, text)."""
    entries = [(entry.time - measured.began, entry.text) for entry in timeline_of(measured.events)]
    entries += [*milestones(measured), *phase_beginnings(measured)]
    return [(f"{time:.1f} s", text) for time, text in sorted(entries, key=lambda entry: entry[0])]


def phase_beginnings(measured: Measures) -> Iterator[tuple[float, str]]:
    """Yield the beginning of each phase of rank 0, only the first one if a phase repeats often."""
    begin_times: dict[str, list[float]] = {}
    for begin, _, name in phases(measured):
        begin_times.setdefault(name, []).append(begin)
    for name, times in begin_times.items():
        if len(times) > MAX_REPEATED_PHASES:
            yield times[0], f"rank 0: {name} (the first of {len(times)} times)"
        else:
            yield from ((time, f"rank 0: {name}") for time in times)


def milestones(measured: Measures) -> Iterator[tuple[float, str]]:
    """Yield the time at which the last rank had completed its first step."""
    first_steps = (e for e in reversed(measured.events) if isinstance(e, FirstStep))
    times = {event.rank: event.time for event in first_steps}
    size = len(measured.ranks)
    if len(times) == size:
        rank = max(times, key=lambda rank: times[rank])
        tail = f" (rank {rank} was the last)" if size > 1 else ""
        yield times[rank] - measured.began, f"first step made{tail}"
