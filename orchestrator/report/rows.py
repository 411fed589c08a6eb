"""The chart of one figure of all ranks over time: a row for each, so that none covers another.

Ranks that train together are equally fast: their lines would lie on each other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from orchestrator.report.smooth import Points, Window, grid, smooth, time_unit
from orchestrator.report.traces import Chart, Trace, axis, band, colour, label, line, middle

ROWS = 4  # of single ranks; more share one row
SLOWEST = 8  # that are drawn in it by themselves
SPREAD = "10th to 90th percentile of the samples"
READ_AS = "A line is the mean of the samples around it, an area their 10th to 90th percentile."
HIGH, ALONE, AROUND, GAP = 86, 220, 96, 24  # pixels: a row, an only one, what is around, between

Found = Mapping[int, Sequence[Window]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`of`: the row whose scale this one shares; 0: its own."""

    name: str
    data: tuple[Trace, ...]
    of: int = 0


def chart(
    found: Mapping[int, Points],
    names: Mapping[int, str],
    slow: Mapping[int, float],
    *,
    title: str,
    total: bool,
    note: str = "",
) -> Chart | None:
    """`found`: rank -> (seconds since the start, value); `slow`: ranks that stand out; `total`:
    with a row for the sum of all ranks. None: no values."""
    times = [at for points in found.values() for at, _ in points]
    if not times:
        return None
    unit, unit_name = time_unit(max(times))
    places = grid(times)
    windows = {rank: in_units(smooth(points, places), unit) for rank, points in found.items()}
    made = list(rows_of({rank: one for rank, one in windows.items() if one}, names, slow, total))
    return Chart(
        title=title,
        note=" ".join(filter(None, (note, READ_AS if len(found) <= ROWS else ""))),
        data=tuple(trace for row in made for trace in row.data),
        layout=layout(made, f"time since the start, {unit_name}"),
        height=height(len(made)),
    )


def in_units(windows: Sequence[Window], unit: float) -> list[Window]:
    return [replace(one, at=round(one.at / unit, 4)) for one in windows]


def rows_of(found: Found, names: Mapping[int, str], slow: Mapping[int, float], total: bool) -> list[Row]:
    first = [total_row(found)] if total and len(found) > 1 else []
    if len(found) > ROWS:
        return [*first, shared_row(found, names, slow, number=len(first) + 1)]
    start = len(first) + 1
    return first + [
        Row(name=names[rank], data=single(found[rank], names[rank], start + index), of=start if index else 0)
        for index, rank in enumerate(sorted(found))
    ]


def total_row(found: Found) -> Row:
    name = f"all {len(found)} ranks together"
    return Row(name=name, data=(line(name, summed(found), colour(0), width=2.5, legend=False),))


def summed(found: Found) -> list[tuple[float, float]]:
    """(place, the ranks' sum), where all of them have a value."""
    places = by_place(found).items()
    return [(at, sum(values)) for at, values in places if len(values) == len(found)]


def by_place(found: Found) -> dict[float, list[float]]:
    values: dict[float, list[float]] = {}
    for windows in found.values():
        for one in windows:
            values.setdefault(one.at, []).append(one.mean)
    return dict(sorted(values.items()))


def single(windows: Sequence[Window], name: str, number: int) -> tuple[Trace, ...]:
    """The line and the spread of one rank."""
    where, own = ref(number), colour(number - 1)
    return (
        band(SPREAD, windows, own, axis=where, legend=False),
        line(name, middle(windows), own, axis=where, legend=False),
    )


def shared_row(found: Found, names: Mapping[int, str], slow: Mapping[int, float], *, number: int) -> Row:
    """The median rank and the spread between the ranks; by itself who stands out."""
    where = ref(number)
    spread = [
        Window(at=at, mean=median(values), low=min(values), high=max(values)) for at, values in by_place(found).items()
    ]
    data = [
        band("slowest to fastest rank", spread, "--c1", axis=where),
        line("median of the ranks", middle(spread), "--c1", axis=where),
    ]
    worst = sorted(slow, key=lambda rank: -slow[rank])[:SLOWEST]
    data += (line(names[rank], middle(found[rank]), "--hot", axis=where, width=1.5) for rank in worst if rank in found)
    return Row(name=f"one of {len(found)} ranks", data=tuple(data))


def ref(number: int) -> str:
    """How plotly names the y axis of a row, counted from 1."""
    return "y" if number == 1 else f"y{number}"


def height(many: int) -> int:
    return ALONE + AROUND if many == 1 else many * (HIGH + GAP) + AROUND


def layout(made: Sequence[Row], time: str) -> Mapping[str, object]:
    """The rows below each other, over one axis of time."""
    inner = height(len(made)) - AROUND
    part, gap = 1 / len(made), GAP / inner
    tops = [1 - index * part - gap for index in range(len(made))]
    axes = {
        f"yaxis{index + 1}" if index else "yaxis": axis(
            domain=[max(0.0, top - part + gap), top],
            rangemode="tozero",
            nticks=4,
            anchor="x",
            **({"matches": ref(row.of)} if row.of else {}),
        )
        for index, (row, top) in enumerate(zip(made, tops, strict=True))
    }
    return {
        "xaxis": axis(time, rangemode="tozero", anchor=ref(len(made))),
        **axes,
        "annotations": [label(row.name, top) for row, top in zip(made, tops, strict=True)],
        "hovermode": "x unified",
        "hoversubplots": "axis",
    }
