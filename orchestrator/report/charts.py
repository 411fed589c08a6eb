"""Charts in plotly's format: loss, throughput, memory and events of a run, and the elements that all charts share.

templates/charts.js adds what all charts have in common, and how traces and axes of a kind look. A colour is the name of
one of the page's CSS variables (`--c1`), which the browser resolves in the light or the dark scheme. Text from nodes
must go through `plain`, because plotly interprets `<b>` and `&lt;`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest
from operator import itemgetter
from statistics import median, median_low
from typing import NamedTuple

from orch_node.protocol.events import Event, Exited, FirstStep, Joined, Progress, Raised, Started

from orchestrator.model.printable import counted
from orchestrator.runs.measures import Measures, RankMeasures, is_number
from orchestrator.runs.timeline import timeline_of

Trace = Mapping[str, object]
Points = Sequence[tuple[float, float]]

SLOW = 1.2  # A rank is slow if its own work takes longer than this multiple of the median.
MAX_LINES = 8  # maximum number of ranks with a line in a chart
MAX_HOVER_TEXT = 300  # maximum number of characters of a hover text
MAX_POINTS = 1000  # maximum number of points of a line
COLOURS = 8  # number of colours of the page, --c1 to --c8
# Each of these events begins a part of a rank's life, which has a colour.
RANK_PHASES: dict[type[Event], str] = {
    Started: "starting, joining",
    Joined: "joined, before its first step",
    FirstStep: "from the first step on",
}
COLOURS_OF_PHASES = ("--starting", "--preparing", "--training", "--hot")
MAX_DRAWN_RANKS = 64
LETTER_WIDTH = 0.032  # width of a letter as a share of a chart on a screen of 400 pixels
ROW_HEIGHT = 16  # pixels
TIME = "time since the start, {}"  # a unit
FAILED = "failed"
EVENTS, PHASES = "events", "phase"  # rows above the rows of the ranks


class Span(NamedTuple):
    """A bar of the timeline, with times in seconds since the start of the run."""

    begin: float
    end: float
    name: str
    row: str = PHASES


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
    data: Sequence[Trace]
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


def slow_ranks(ranks: Sequence[RankMeasures]) -> dict[int, float]:
    """Return the ranks that delay the others, the slowest first.

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
    slow = [rank for rank, seconds in work.items() if seconds > SLOW * usual and seconds - usual > worth]
    return {rank: work[rank] / max(usual, 1e-9) for rank in sorted(slow, key=work.__getitem__, reverse=True)}


def describe_stragglers(measured: Measures) -> str:
    """Return a sentence that names the slowest ranks, or says that there are none; empty without timed steps."""
    if not any(rank.step_seconds for rank in measured.ranks):
        return ""
    slow = slow_ranks(measured.ranks)
    nodes = {rank.rank: rank.node for rank in measured.ranks}
    stragglers = [f"rank {rank} on {nodes[rank]} needs {times:.1f} times the median" for rank, times in slow.items()]
    more = f", and {len(slow) - 3} more" if len(slow) > 3 else ""
    return f"Stragglers: {'; '.join(stragglers[:3])}{more}." if slow else "No rank holds the others up."


def loss_chart(measured: Measures) -> Chart | None:
    """Return the chart of the loss, or None if neither the script nor a rank reports a loss."""
    points: Points = [(step, loss) for step, loss in measured.loss if is_number(loss)]
    note = "The mean of all ranks, as the script reports it."
    if not points:
        samples = (sample for rank in measured.ranks for sample in rank.samples if sample.steps)
        points = sorted((sample.step, sample.loss) for sample in samples if is_number(sample.loss))
        note = "The losses of the ranks' own batches."
    if not points:
        return None
    layout = {"xaxis": axis("step"), "yaxis": axis(), "hovermode": "x unified"}
    return Chart(title="Loss", note=note, data=[line("loss", thin(points), "--c1", width=2.5)], layout=layout)


def throughput_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's samples per second, or steps per second if no samples are reported."""
    has_samples = any(stretch.samples_per_second for rank in measured.ranks for stretch in rank.stretches())
    field = "samples_per_second" if has_samples else "steps_per_second"
    unit = "samples/s" if has_samples else "optimizer steps/s, as the script does not report its samples"

    def rates(rank: RankMeasures) -> Points:
        return [(stretch.time, getattr(stretch, field) or 0.0) for stretch in rank.stretches()]

    return ranks_chart(measured, rates, f"Throughput of each rank, {unit}", describe_stragglers(measured))


def memory_chart(
    measured: Measures, title: str = "Resident memory of each rank, GiB", field: str = "rss_bytes"
) -> Chart | None:
    """Return the chart of a size in bytes that the ranks' samples have, or None if none has it."""

    def sizes(rank: RankMeasures) -> Points:
        return [(sample.time, getattr(sample, field) / 2**30) for sample in rank.samples if getattr(sample, field)]

    return ranks_chart(measured, sizes, title)


def ranks_chart(
    measured: Measures, points_of: Callable[[RankMeasures], Points], title: str, note: str = ""
) -> Chart | None:
    """Return a chart with a line for each rank, or None if there are no values.

    If there are more than MAX_LINES ranks, it has the median of all ranks and a line for each of the slowest.

    Args:
        measured: the measurements of the run.
        points_of: returns the points (time, value) of a rank.
        title: the title of the chart.
        note: a sentence below the title.
    """
    points_of_ranks = list(map(points_of, measured.ranks))
    times = [time for points in points_of_ranks for time, _ in points]
    if not times:
        return None
    unit, unit_name = time_unit(max(times) - measured.began)
    slow = slow_ranks(measured.ranks)
    drawn = list(zip(measured.ranks, points_of_ranks, strict=True))
    lines: list[tuple[str, Points, str, float]] = []
    if len(drawn) > MAX_LINES:
        # The ranks measure at about the same times.
        together = [list(filter(None, points)) for points in zip_longest(*points_of_ranks)]
        medians = [(median(x for x, _ in points), median(y for _, y in points)) for points in together]
        lines = [(f"median of {len(drawn)} ranks", medians, "--c1", 2)]
        drawn = [(rank, points) for rank, points in drawn if rank.rank in [*slow][:MAX_LINES]]
    for index, (rank, points) in enumerate(drawn):
        line_colour = "--hot" if rank.rank in slow else colour(index)
        lines.append((f"rank {rank.rank} on {rank.node}", points, line_colour, 1.5))
    data = [
        line(name, [((time - measured.began) / unit, value) for time, value in thin(points)], line_colour, width=width)
        for name, points, line_colour, width in lines
        if points
    ]
    layout = {"xaxis": axis(TIME.format(unit_name)), "yaxis": axis(rangemode="tozero")}
    return Chart(title=title, note=note, data=data, layout=layout)


def timeline(measured: Measures) -> Chart | None:
    """Return the chart of the events, or None if there are none."""
    times = [event.time for event in measured.events if event.time]
    if not times:
        return None
    last = max(times) - measured.began
    unit, unit_name = time_unit(last)
    failed = {event.rank for event in measured.events if is_failure(event)}
    failed_first = sorted((rank.rank for rank in measured.ranks), key=lambda rank: (rank not in failed, rank))
    ranks = sorted(failed_first[:MAX_DRAWN_RANKS])
    hidden = len(measured.ranks) - len(ranks)
    marks = [(moment.time - measured.began, moment.text) for moment in timeline_of(measured.events)]
    rank0_phases = phases(measured)
    # On a narrow screen, a bar has room for its text.
    texts = [plain(p.name) if p.end - p.begin > LETTER_WIDTH * len(p.name) * last else "" for p in rank0_phases]
    data: list[Trace] = [
        {
            "kind": "mark",
            "name": "what happened",
            "x": [time / unit for time, _ in marks],
            "y": [EVENTS] * len(marks),
            "hovertext": [hover(text) for _, text in marks],
        },
        {**bars("phases of rank 0", "--phase", rank0_phases, unit), "text": texts},
    ]
    spans = [span for rank in ranks for span in rank_phases(measured, rank, last)]
    for phase, phase_colour in zip((*RANK_PHASES.values(), FAILED), COLOURS_OF_PHASES, strict=True):
        if drawn := [span for span in spans if span.name == phase]:
            data.append(bars(phase, phase_colour, drawn, unit))
    rows = [EVENTS, PHASES, *(f"rank {rank}" for rank in ranks)]
    rows_axis = axis(kind="rows", categoryarray=rows, range=[len(rows) - 0.5, -0.5])
    time_axis = axis(TIME.format(unit_name), rangemode="nonnegative")
    layout = {"barmode": "overlay", "bargap": 0.15, "xaxis": time_axis, "yaxis": rows_axis}
    note = f"Not drawn: {counted(hidden, 'more rank')}." if hidden else ""
    return Chart(title="Timeline", note=note, data=data, layout=layout, height=150 + ROW_HEIGHT * len(rows))


def bars(name: str, colour: str, spans: Sequence[Span], unit: float) -> dict[str, object]:
    """Return a horizontal bar for each span."""
    return {
        "kind": "span",
        "name": name,
        "marker": {"color": colour},
        "y": [span.row for span in spans],
        "base": [span.begin / unit for span in spans],
        "x": [(span.end - span.begin) / unit for span in spans],
        "hovertext": [hover(f"{span.row}: {span.name}, {span.end - span.begin:.1f} s") for span in spans],
    }


def is_failure(event: Event) -> bool:
    """Return whether an event is a rank's own failure, not a stop caused by another rank's failure."""
    return event.is_failure if isinstance(event, Exited) else isinstance(event, Raised)


def phases(measured: Measures) -> list[Span]:
    """Return the phases of rank 0."""
    events = [event for event in measured.events if event.rank == 0 and isinstance(event, (Progress, Exited))]
    marks = [(event.time - measured.began, getattr(event, "phase", None) or "") for event in events]
    begins = [next(group) for _, group in groupby(marks, key=itemgetter(1))]
    return [Span(begin, end, name) for (begin, name), (end, _) in pairwise([*begins, *marks[-1:]]) if name]


def rank_phases(measured: Measures, rank: int, last: float) -> Iterator[Span]:
    """Yield the parts of a rank's life, and a short one for its failure; a restarted rank begins again."""
    row = f"rank {rank}"
    events = [e for e in measured.events if e.rank == rank and (type(e) in RANK_PHASES or isinstance(e, Exited))]
    marks = [(event.time - measured.began, RANK_PHASES.get(type(event), "")) for event in events]
    for (begin, name), (end, _) in pairwise([*marks, (last, "")]):
        if name:
            yield Span(begin, end, name, row)
    for event, (time, _) in zip(events, marks, strict=True):
        if is_failure(event):
            yield Span(max(time - last * 0.008, 0.0), time, FAILED, row)
