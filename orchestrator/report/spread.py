"""The chart of where the time of a step goes: a column for each rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low

from orchestrator.report.charts import SLOW, named, slow_ranks
from orchestrator.report.smooth import time_unit
from orchestrator.report.traces import Chart, Trace, axis, label, line, plain
from orchestrator.runs.measures import Measures, RankMeasures

RANKS = 128  # as many as a chart of one column a rank has room for
COLUMNS = (0.0, 0.66)  # of the chart's height; what is above has the longest steps, on its own scale
LONGEST = (0.78, 0.95)
TICKS = 16
HOVER = "%{customdata}<br>%{fullData.name}<br>%{y:.3g}<extra></extra>"  # of plotly


def spread_chart(measured: Measures) -> Chart | None:
    """A column for each rank: its own work, then backward() with the waiting; above it the
    longest step."""
    timed = [rank for rank in measured.ranks if rank.step_seconds is not None]
    if not timed:
        return None
    slow = slow_ranks(timed)
    shown = pick(timed, slow)
    unit, name = time_unit(max(rank.step_seconds or 0.0 for rank in shown))
    return Chart(
        title="Where the time of a step goes, rank by rank",
        note=spread_note(measured, slow, hidden=len(timed) - len(shown)),
        data=tuple(columns(shown, slow, unit, name)),
        layout=layout(name, [rank.rank for rank in shown]),
        height=400,
    )


def columns(shown: Sequence[RankMeasures], slow: dict[int, float], unit: float, name: str) -> list[Trace]:
    usual = median_low([rank.work_seconds or 0.0 for rank in shown]) / unit
    work = [(rank, rank.work_seconds or 0.0) for rank in shown]
    waiting = [(rank, (rank.step_seconds or 0.0) - seconds) for rank, seconds in work]
    hot = f"own work, more than {SLOW} times the median"
    kinds = (
        ("own work: data, forward, optimizer", "--c1", work, lambda rank: rank not in slow),
        (hot, "--hot", work, lambda rank: rank in slow),
        ("backward(), with waiting for the other ranks", "--wait", waiting, lambda rank: True),
    )
    made = [
        column(title, colour, values, unit, shows) for title, colour, values, shows in kinds if title != hot or slow
    ]
    if len(shown) > 1:
        ends = [(float(index), usual) for index in (-0.5, len(shown) - 0.5)]
        made.append(line(f"median of own work: {usual:.3g} {name}", ends, "--ink", width=1.2, dash="dash"))
    return [*made, longest(shown, unit)]


def column(
    name: str, colour: str, values: Sequence[tuple[RankMeasures, float]], unit: float, shows: Callable[[int], bool]
) -> Trace:
    """A part of the columns, of those ranks that it `shows` for."""
    of = [(x, rank, value) for x, (rank, value) in enumerate(values) if shows(rank.rank)]
    return {
        "type": "bar",
        "name": plain(name),
        "marker": {"color": colour},
        "x": [x for x, _, _ in of],
        "y": [value / unit for _, _, value in of],
        "customdata": [plain(named(rank)) for _, rank, _ in of],
        "hovertemplate": HOVER,
        **({"width": 0.5} if len(values) < 5 else {}),
    }


def longest(ranks: Sequence[RankMeasures], unit: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "the longest step",
        "yaxis": "y2",
        "marker": {"color": "--c2", "size": 7},
        "x": list(range(len(ranks))),
        "y": [(rank.longest_step or 0.0) / unit for rank in ranks],
        "customdata": [plain(named(rank)) for rank in ranks],
        "hovertemplate": HOVER,
    }


def layout(name: str, ranks: Sequence[int]) -> dict[str, object]:
    every = math.ceil(len(ranks) / TICKS)
    places = list(range(0, len(ranks), every))
    return {
        "barmode": "stack",
        "xaxis": axis(
            "rank",
            tickvals=places,
            ticktext=[str(ranks[at]) for at in places],
            range=[-0.6, len(ranks) - 0.4],
            showgrid=False,
        ),
        "yaxis": axis(domain=COLUMNS, rangemode="tozero"),
        "yaxis2": axis(domain=LONGEST, rangemode="tozero", nticks=3, anchor="x"),
        "annotations": [label(f"the longest step, {name}", LONGEST[1]), label(f"the mean step, {name}", COLUMNS[1])],
    }


def pick(ranks: list[RankMeasures], slow: dict[int, float]) -> list[RankMeasures]:
    """All, or as many as have room: the slow ones first."""
    if len(ranks) <= RANKS:
        return ranks
    kept = sorted(ranks, key=lambda rank: (-slow.get(rank.rank, 0.0), rank.rank))[:RANKS]
    return sorted(kept, key=lambda rank: rank.rank)


def spread_note(measured: Measures, slow: dict[int, float], *, hidden: int) -> str:
    by_rank = {rank.rank: rank for rank in measured.ranks}
    worst = sorted(slow.items(), key=lambda item: -item[1])[:3]
    told = [f"{named(by_rank[rank])} needs {times:.1f} times the median" for rank, times in worst]
    more = f", and {len(slow) - len(worst)} more" if len(slow) > len(worst) else ""
    words = f"Stragglers: {'; '.join(told)}{more}." if slow else "No rank holds the others up."
    return f"{words} {hidden} ranks have no room here." if hidden else words
