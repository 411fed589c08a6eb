"""The chart of one figure of all ranks over time, with a separate row for each rank.

Ranks that train together are equally fast, so in a shared row their lines would cover each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from orchestrator.report.smooth import Points, Window, grid, smooth, time_unit
from orchestrator.report.traces import Chart, Trace, axis, band, colour, label, line, middle

ROWS = 4  # maximum number of rows of single ranks; more ranks share one row
SLOWEST = 8  # maximum number of slow ranks with their own line in the shared row
SPREAD = "10th to 90th percentile of the samples"
READ_AS = "A line is the mean of the samples around it, an area their 10th to 90th percentile."
HEIGHT, SINGLE_HEIGHT, MARGINS, GAP = 86, 220, 96, 24  # pixels: a row, a single row, the margins, between rows

WindowsByRank = Mapping[int, Sequence[Window]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the chart.

    Attributes:
        name: the label above the row.
        data: the lines and areas of the row.
        scale_row: the number of the row whose scale this row shares, or 0 if it has its own scale.
    """

    name: str
    data: tuple[Trace, ...]
    scale_row: int = 0


def chart(
    points_by_rank: Mapping[int, Points],
    names: Mapping[int, str],
    slow: Mapping[int, float],
    *,
    title: str,
    total: bool,
    note: str = "",
) -> Chart | None:
    """Return the chart, or None if there are no values.

    Args:
        points_by_rank: the points (seconds since the start, value) by rank.
        names: the name of each rank.
        slow: the slow ranks, with their slowdown.
        title: the title of the chart.
        total: whether to add a row for the sum of all ranks.
        note: a sentence below the title.
    """
    times = [seconds for points in points_by_rank.values() for seconds, _ in points]
    if not times:
        return None
    unit, unit_name = time_unit(max(times))
    grid_times = grid(times)
    windows = {rank: in_units(smooth(points, grid_times), unit) for rank, points in points_by_rank.items()}
    chart_rows = list(
        rows_of({rank: rank_windows for rank, rank_windows in windows.items() if rank_windows}, names, slow, total)
    )
    return Chart(
        title=title,
        note=" ".join(filter(None, (note, READ_AS if len(points_by_rank) <= ROWS else ""))),
        data=tuple(trace for row in chart_rows for trace in row.data),
        layout=layout(chart_rows, f"time since the start, {unit_name}"),
        height=height(len(chart_rows)),
    )


def in_units(windows: Sequence[Window], unit: float) -> list[Window]:
    """Return the windows with their times divided by the seconds of a unit."""
    return [replace(window, time=round(window.time / unit, 4)) for window in windows]


def rows_of(windows: WindowsByRank, names: Mapping[int, str], slow: Mapping[int, float], total: bool) -> list[Row]:
    """Return the rows of the chart: the sum if requested, then the ranks or the row that they share."""
    first = [total_row(windows)] if total and len(windows) > 1 else []
    if len(windows) > ROWS:
        return [*first, shared_row(windows, names, slow, number=len(first) + 1)]
    start = len(first) + 1
    return first + [
        Row(name=names[rank], data=single(windows[rank], names[rank], start + index), scale_row=start if index else 0)
        for index, rank in enumerate(sorted(windows))
    ]


def total_row(windows: WindowsByRank) -> Row:
    """Return the row of the sum of all ranks."""
    name = f"all {len(windows)} ranks together"
    return Row(name=name, data=(line(name, summed(windows), colour(0), width=2.5, legend=False),))


def summed(windows: WindowsByRank) -> list[tuple[float, float]]:
    """Return the sum of all ranks at each time at which all of them have a value."""
    return [(time, sum(values)) for time, values in values_by_time(windows).items() if len(values) == len(windows)]


def values_by_time(windows_by_rank: WindowsByRank) -> dict[float, list[float]]:
    """Return the ranks' values at each time, in ascending order of time."""
    values: dict[float, list[float]] = {}
    for rank_windows in windows_by_rank.values():
        for window in rank_windows:
            values.setdefault(window.time, []).append(window.mean)
    return dict(sorted(values.items()))


def single(windows: Sequence[Window], name: str, number: int) -> tuple[Trace, ...]:
    """Return the line and the spread of one rank."""
    axis_name, row_colour = ref(number), colour(number - 1)
    return (
        band(SPREAD, windows, row_colour, axis=axis_name, legend=False),
        line(name, middle(windows), row_colour, axis=axis_name, legend=False),
    )


def shared_row(windows: WindowsByRank, names: Mapping[int, str], slow: Mapping[int, float], *, number: int) -> Row:
    """Return a row with the median, the spread between the ranks and a line for each slow rank."""
    axis_name = ref(number)
    spread = [
        Window(time=time, mean=median(values), low=min(values), high=max(values))
        for time, values in values_by_time(windows).items()
    ]
    data = [
        band("slowest to fastest rank", spread, "--c1", axis=axis_name),
        line("median of the ranks", middle(spread), "--c1", axis=axis_name),
    ]
    worst = sorted(slow, key=lambda rank: -slow[rank])[:SLOWEST]
    data += (
        line(names[rank], middle(windows[rank]), "--hot", axis=axis_name, width=1.5)
        for rank in worst
        if rank in windows
    )
    return Row(name=f"one of {len(windows)} ranks", data=tuple(data))


def ref(number: int) -> str:
    """Return plotly's name of the y axis of a row, counted from 1."""
    return "y" if number == 1 else f"y{number}"


def height(row_count: int) -> int:
    """Return the height of a chart with this many rows, in pixels."""
    return SINGLE_HEIGHT + MARGINS if row_count == 1 else row_count * (HEIGHT + GAP) + MARGINS


def layout(chart_rows: Sequence[Row], time: str) -> Mapping[str, object]:
    """Return a layout with the rows below each other and a common time axis."""
    inner = height(len(chart_rows)) - MARGINS
    share, gap = 1 / len(chart_rows), GAP / inner
    tops = [1 - index * share - gap for index in range(len(chart_rows))]
    axes = {
        f"yaxis{index + 1}" if index else "yaxis": axis(
            domain=[max(0.0, top - share + gap), top],
            rangemode="tozero",
            nticks=4,
            anchor="x",
            **({"matches": ref(row.scale_row)} if row.scale_row else {}),
        )
        for index, (row, top) in enumerate(zip(chart_rows, tops, strict=True))
    }
    return {
        "xaxis": axis(time, rangemode="tozero", anchor=ref(len(chart_rows))),
        **axes,
        "annotations": [label(row.name, top) for row, top in zip(chart_rows, tops, strict=True)],
        "hovermode": "x unified",
        "hoversubplots": "axis",
    }
