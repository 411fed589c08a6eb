"""The chart of how the time of a step is spent, with a column for each rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low

from orchestrator.model.printable import counted
from orchestrator.report.charts import SLOW, rank_label, slow_ranks
from orchestrator.report.smooth import time_unit
from orchestrator.report.traces import Chart, Trace, axis, label, line, plain
from orchestrator.runs.measures import Measures, RankMeasures

RANKS = 128  # maximum number of columns that a chart has room for
COLUMNS = (0.0, 0.66)  # share of the chart's height; the longest steps are above it, on their own scale
LONGEST = (0.78, 0.95)
TICKS = 16
HOVER = "%{customdata}<br>%{fullData.name}<br>%{y:.3g}<extra></extra>"  # plotly's hover template


def spread_chart(measured: Measures) -> Chart | None:
    """Return the chart, or None if no rank has timed its steps.

    A column shows a rank's own work, then backward() including the waiting; a mark above it shows the
    longest step.
    """
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
    """Return the columns of the ranks, the median of the ranks' work and the longest steps."""
    usual = median_low([rank.work_seconds or 0.0 for rank in shown]) / unit
    work = [(rank, rank.work_seconds or 0.0) for rank in shown]
    waiting = [(rank, (rank.step_seconds or 0.0) - seconds) for rank, seconds in work]
    hot = f"own work, more than {SLOW} times the median"
    kinds = (
        ("own work: data, forward, optimizer", "--c1", work, lambda rank: rank not in slow),
        (hot, "--hot", work, lambda rank: rank in slow),
        ("backward(), with waiting for the other ranks", "--wait", waiting, lambda rank: True),
    )
    traces = [
        column(title, colour, values, unit, shows) for title, colour, values, shows in kinds if title != hot or slow
    ]
    if len(shown) > 1:
        ends = [(float(index), usual) for index in (-0.5, len(shown) - 0.5)]
        traces.append(line(f"median of own work: {usual:.3g} {name}", ends, "--ink", width=1.2, dash="dash"))
    return [*traces, longest(shown, unit)]


def column(
    name: str, colour: str, values: Sequence[tuple[RankMeasures, float]], unit: float, shows: Callable[[int], bool]
) -> Trace:
    """Return one part of the columns, for the ranks for which `shows` returns true."""
    shown_values = [(x, rank, value) for x, (rank, value) in enumerate(values) if shows(rank.rank)]
    return {
        "type": "bar",
        "name": plain(name),
        "marker": {"color": colour},
        "x": [x for x, _, _ in shown_values],
        "y": [value / unit for _, _, value in shown_values],
        "customdata": [plain(rank_label(rank)) for _, rank, _ in shown_values],
        "hovertemplate": HOVER,
        **({"width": 0.5} if len(values) < 5 else {}),
    }


def longest(ranks: Sequence[RankMeasures], unit: float) -> Trace:
    """Return a mark for the longest step of each rank."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "the longest step",
        "yaxis": "y2",
        "marker": {"color": "--c2", "size": 7},
        "x": list(range(len(ranks))),
        "y": [(rank.longest_step or 0.0) / unit for rank in ranks],
        "customdata": [plain(rank_label(rank)) for rank in ranks],
        "hovertemplate": HOVER,
    }


def layout(name: str, ranks: Sequence[int]) -> dict[str, object]:
    """Return a layout with the longest steps above the columns."""
    interval = math.ceil(len(ranks) / TICKS)
    ticks = list(range(0, len(ranks), interval))
    return {
        "barmode": "stack",
        "xaxis": axis(
            "rank",
            tickvals=ticks,
            ticktext=[str(ranks[tick]) for tick in ticks],
            range=[-0.6, len(ranks) - 0.4],
            showgrid=False,
        ),
        "yaxis": axis(domain=COLUMNS, rangemode="tozero"),
        "yaxis2": axis(domain=LONGEST, rangemode="tozero", nticks=3, anchor="x"),
        "annotations": [label(f"the longest step, {name}", LONGEST[1]), label(f"the mean step, {name}", COLUMNS[1])],
    }


def pick(ranks: list[RankMeasures], slow: dict[int, float]) -> list[RankMeasures]:
    """Return all ranks, or the RANKS ranks that have room, the slow ones first."""
    if len(ranks) <= RANKS:
        return ranks
    selected = sorted(ranks, key=lambda rank: (-slow.get(rank.rank, 0.0), rank.rank))[:RANKS]
    return sorted(selected, key=lambda rank: rank.rank)


def spread_note(measured: Measures, slow: dict[int, float], *, hidden: int) -> str:
    """Return a sentence that names the slowest ranks, or says that there are none."""
    by_rank = {rank.rank: rank for rank in measured.ranks}
    worst = sorted(slow.items(), key=lambda item: -item[1])[:3]
    stragglers = [f"{rank_label(by_rank[rank])} needs {times:.1f} times the median" for rank, times in worst]
    more = f", and {len(slow) - len(worst)} more" if len(slow) > len(worst) else ""
    note = f"Stragglers: {'; '.join(stragglers)}{more}." if slow else "No rank holds the others up."
    return f"{note} No room here for {counted(hidden, 'more rank')}." if hidden else note
