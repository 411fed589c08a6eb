"""Charts in plotly's format: loss, throughput, memory and events of a run, and the elements that all charts share.

templates/charts.js adds what all charts have in common. A colour is the name of one of the page's CSS variables
(`--c1`), which the browser resolves in the light or the dark scheme. Text from nodes must go through `plain`, because
plotly interprets `<b>` and `&lt;`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from statistics import median, median_low

from orch_node.protocol.events import Event, Exited, FirstStep, Joined, Progress, Raised, Started

from orchestrator.model.printable import counted
from orchestrator.runs.measures import Measures, RankMeasures, is_number
from orchestrator.runs.timeline import Moment, timeline_of

Trace = Mapping[str, object]
Points = Sequence[tuple[float, float]]
Span = tuple[str, float, float, str]  # row, begin, end, description

SLOW = 1.2  # A rank is slow if its own work takes longer than this multiple of the median.
MAX_LINES = 8  # maximum number of ranks with a line in a chart
MAX_HOVER_TEXT = 300  # maximum number of characters of a hover text
MAX_POINTS = 1000  # maximum number of points of a line
COLOURS = 8  # number of colours of the page, --c1 to --c8
# Each of these events begins a part of a rank's life, which has a colour.
RANK_PHASES: dict[type[Event], str] = {Started: "starting", Joined: "preparing", FirstStep: "training"}
LEGEND = {
    "starting": "starting, joining",
    "preparing": "joined, before its first step",
    "training": "from the first step on",
    "failed": "failed",
}
MAX_DRAWN_RANKS = 64
LETTER_WIDTH = 0.032  # width of a letter as a share of a chart on a screen of 400 pixels
ROW_HEIGHT = 16  # pixels
MAX_REPEATED_PHASES = 3
EVENTS, PHASES = "events", "phase"  # rows above the rows of the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of a page.

    Attributes:
        title: the title above the chart.
        data: the traces in plotly's format.
        layout: the layout in plotly's format.
        note: a sentence below the title, or "".
        height: the height in pixels.
    """

    title: str
    data: tuple[Trace, ...]
    layout: Mapping[str, object]
    note: str = ""
    height: int = 320


def plain(text: str) -> str:
    """Return the text with the characters escaped that plotly interprets."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def hover(text: str) -> str:
    """Return the beginning of a text, wrapped so that a hover box fits a narrow screen."""
    return "<br>".join(plain(line) for line in textwrap.wrap(text[:MAX_HOVER_TEXT], 48))


def colour(index: int) -> str:
    """Return the colour of the series with this index."""
    return f"--c{index % COLOURS + 1}"


def line(name: str, points: Points, colour: str, *, width: float = 2) -> Trace:
    """Return a line through the points.

    Args:
        name: the name in the legend.
        points: the points of the line.
        colour: the name of a CSS variable.
        width: the width in pixels.
    """
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": plain(name),
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour, "width": width},
        "marker": {"color": colour},
    }


def axis(title: str = "", **more: object) -> Mapping[str, object]:
    """Return an axis with a title and further options of plotly."""
    return {"title": {"text": plain(title)}, **more}


def thin(points: Points) -> Points:
    """Return at most MAX_POINTS points, each the mean of neighbouring points."""
    size = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [points[index : index + size] for index in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a duration: its length in seconds and its name."""
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")


def rank_label(rank: RankMeasures) -> str:
    return f"rank {rank.rank} on {rank.node}"


def slow_ranks(ranks: Sequence[RankMeasures]) -> dict[int, float]:
    """Return the ranks that delay the others.

    Returns:
        The own work of each slow rank as a multiple of the median, by rank.
    """
    work = {r.rank: r.work_seconds for r in ranks if r.work_seconds is not None}
    steps = [r.step_seconds for r in ranks if r.step_seconds is not None]
    if len(work) < 2 or not steps:
        return {}
    usual = median_low(work.values())
    # A difference that is small compared with the step delays nobody.
    worth = 0.05 * median_low(steps)
    return {
        rank: seconds / max(usual, 1e-9)
        for rank, seconds in work.items()
        if seconds > SLOW * usual and seconds - usual > worth
    }


def describe_stragglers(measured: Measures) -> str:
    """Return a sentence that names the slowest ranks, or says that there are none; empty without timed steps."""
    if not any(rank.step_seconds for rank in measured.ranks):
        return ""
    slow = slow_ranks(measured.ranks)
    by_rank = {rank.rank: rank for rank in measured.ranks}
    worst = sorted(slow.items(), key=lambda item: -item[1])[:3]
    stragglers = [f"{rank_label(by_rank[rank])} needs {times:.1f} times the median" for rank, times in worst]
    more = f", and {len(slow) - len(worst)} more" if len(slow) > len(worst) else ""
    return f"Stragglers: {'; '.join(stragglers)}{more}." if slow else "No rank holds the others up."


def loss_chart(measured: Measures) -> Chart | None:
    """Return the chart of the loss, or None if neither the script nor a rank reports a loss."""
    points: Points = [(step, loss) for step, loss in measured.loss if is_number(loss)]
    note = "The mean of all ranks, as the script reports it."
    if not points:
        samples = (sample for rank in measured.ranks for sample in rank.samples if sample.steps)
        points = tuple(sorted((s.step, s.loss) for s in samples if is_number(s.loss)))
        note = "The losses of the ranks' own batches."
    if not points:
        return None
    layout = {"xaxis": axis("step"), "yaxis": axis(), "hovermode": "x unified"}
    return Chart(title="Loss", note=note, data=(line("loss", thin(points), "--c1", width=2.5),), layout=layout)


def throughput_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's samples per second, or steps per second if no samples are reported."""
    stretches = {rank.rank: rank.stretches() for rank in measured.ranks}
    has_samples = any(stretch.samples_per_second for rates in stretches.values() for stretch in rates)
    rates = {
        rank: [
            (s.time - measured.began, (s.samples_per_second or 0.0) if has_samples else s.steps_per_second)
            for s in rank_stretches
        ]
        for rank, rank_stretches in stretches.items()
    }
    unit = "samples/s" if has_samples else "steps/s"
    steps = "" if has_samples else "The script does not tell its samples; these are optimizer steps."
    note = " ".join(filter(None, (describe_stragglers(measured), steps)))
    return ranks_chart(measured, rates, title=f"Throughput of each rank, {unit}", note=note)


def memory_chart(
    measured: Measures, title: str = "Resident memory of each rank, GiB", field: str = "rss_bytes"
) -> Chart | None:
    """Return the chart of a size in bytes that the ranks' samples have, or None if none has it."""
    sizes = {
        rank.rank: [(s.time - measured.began, getattr(s, field) / 2**30) for s in rank.samples if getattr(s, field)]
        for rank in measured.ranks
    }
    return ranks_chart(measured, sizes, title=title)


def ranks_chart(
    measured: Measures, points_by_rank: Mapping[int, Points], *, title: str, note: str = ""
) -> Chart | None:
    """Return a chart with a line for each rank, or None if there are no values.

    If there are more than MAX_LINES ranks, it has the median of all ranks and a line for each of the slowest.

    Args:
        measured: the measurements of the run.
        points_by_rank: the points (seconds since the start, value) by rank.
        title: the title of the chart.
        note: a sentence below the title.
    """
    times = [seconds for points in points_by_rank.values() for seconds, _ in points]
    if not times:
        return None
    unit, unit_name = time_unit(max(times))
    slow = slow_ranks(measured.ranks)
    labels = {rank.rank: rank_label(rank) for rank in measured.ranks}
    drawn = sorted(points_by_rank)
    lines = []
    if len(drawn) > MAX_LINES:
        middle = thin(median_line(points_by_rank))
        lines = [line(f"median of {len(drawn)} ranks", in_units(middle, unit), "--c1")]
        drawn = sorted(sorted(slow, key=lambda rank: -slow[rank])[:MAX_LINES])
    for index, rank in enumerate(drawn):
        if points_by_rank[rank]:
            rank_colour = "--hot" if rank in slow else colour(index)
            lines.append(line(labels[rank], in_units(thin(points_by_rank[rank]), unit), rank_colour, width=1.5))
    layout = {"xaxis": axis(f"time since the start, {unit_name}"), "yaxis": axis(rangemode="tozero")}
    return Chart(title=title, note=note, data=tuple(lines), layout=layout)


def in_units(points: Points, unit: float) -> list[tuple[float, float]]:
    """Return the points with their times divided by the seconds of a unit."""
    return [(round(seconds / unit, 4), value) for seconds, value in points]


def median_line(points_by_rank: Mapping[int, Points]) -> list[tuple[float, float]]:
    """Return the median of the ranks' points, which they measure at about the same times."""
    together = (list(filter(None, points)) for points in zip_longest(*points_by_rank.values()))
    return [(median(x for x, _ in points), median(y for _, y in points)) for points in together]


def timeline(measured: Measures) -> Chart | None:
    """Return the chart of the events, or None if there are none."""
    times = [event.time for event in measured.events if event.time]
    if not times:
        return None
    last = max(times) - measured.began
    unit, name = time_unit(last)
    ranks = drawn_ranks(measured)
    hidden = len(measured.ranks) - len(ranks)
    rank0_phases = list(phases(measured))
    phase_spans = [(PHASES, begin, end, f"{phase}: {end - begin:.1f} s") for begin, end, phase in rank0_phases]
    spans: dict[str, list[Span]] = {part: [] for part in LEGEND}
    for rank in ranks:
        for begin, end, part in rank_phases(measured, rank, last):
            spans[part].append((f"rank {rank}", begin, end, f"rank {rank}: {LEGEND[part]}, {end - begin:.1f} s"))
    events = timeline_of(measured.events)
    return Chart(
        title="Timeline",
        note=f"Not drawn: {counted(hidden, 'more rank')}." if hidden else "",
        data=(
            *([events_trace(events, measured.began, unit)] if events else ()),
            {
                **bars("phases of rank 0", "--phase", phase_spans, unit),
                "text": [
                    # On a narrow screen, a bar has room for its text.
                    plain(phase) if (end - begin) / last > LETTER_WIDTH * len(phase) else ""
                    for begin, end, phase in rank0_phases
                ],
                "textposition": "inside",
                "insidetextanchor": "start",
                "constraintext": "none",
            },
            *(
                bars(LEGEND[part], "--hot" if part == "failed" else f"--{part}", of_part, unit)
                for part, of_part in spans.items()
                if of_part
            ),
        ),
        layout=layout([*([EVENTS] if events else ()), PHASES, *(f"rank {rank}" for rank in ranks)], name),
        height=150 + ROW_HEIGHT * (len(ranks) + 2),
    )


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
            tickfont={"size": 11},
        ),
    }


def bars(name: str, colour: str, spans: Sequence[Span], unit: float) -> Trace:
    """Return a horizontal bar for each span."""
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
    begin_times: dict[str, list[float]] = {}
    for begin, _, name in phases(measured):
        begin_times.setdefault(name, []).append(begin)
    for name, times in begin_times.items():
        if len(times) > MAX_REPEATED_PHASES:
            entries.append((times[0], f"rank 0: {name} (the first of {len(times)} times)"))
        else:
            entries += ((time, f"rank 0: {name}") for time in times)
    first_steps = {event.rank: event.time for event in reversed(measured.events) if isinstance(event, FirstStep)}
    size = len(measured.ranks)
    if len(first_steps) == size:
        last = max(first_steps, key=first_steps.__getitem__)
        tail = f" (rank {last} was the last)" if size > 1 else ""
        entries.append((first_steps[last] - measured.began, f"first step made{tail}"))
    return [(f"{time:.1f} s", text) for time, text in sorted(entries, key=itemgetter(0))]
