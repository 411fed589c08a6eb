"""The chart of where the time of a step goes: a column for each rank. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median_low

from orchestrator.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SLOW,
    TOP,
    WIDTH,
    Bar,
    Chart,
    Line,
    Text,
    named,
    slow_ranks,
)
from orchestrator.report.scales import Scale, scale, time_unit
from orchestrator.runs.measures import Measures, RankMeasures

WHISKERS = 1.6  # times the highest bar, so that one long step does not flatten all bars
RANKS = 128  # as many as a chart of one bar a rank has room for
LABEL = 30.0  # pixels that the label of a rank and the gap after it take


def spread_chart(measured: Measures) -> Chart | None:
    """A bar for each rank: its own work, then backward() with the waiting; a whisker to its
    longest step."""
    timed = [rank for rank in measured.ranks if rank.step_seconds is not None]
    if not timed:
        return None
    slow = slow_ranks(timed)
    shown = pick(timed, slow)
    highest = max(rank.step_seconds or 0.0 for rank in shown)
    whisker = min(max(rank.longest_step or 0.0 for rank in shown), WHISKERS * highest)
    unit, name = time_unit(highest)
    y = scale([max(highest, whisker) / unit], HEIGHT - BOTTOM, TOP, zero=True)
    room = (WIDTH - LEFT - RIGHT) / len(shown)
    columns = [
        Column(rank=rank, middle=LEFT + room * (index + 0.5), width=min(room * 0.7, 46.0), y=y,
               unit=unit, name=name, times=slow.get(rank.rank))
        for index, rank in enumerate(shown)
    ]  # fmt: skip
    every = math.ceil(LABEL / room)
    usual = median_low([rank.work_seconds or 0.0 for rank in timed]) / unit
    usual_line = Line(points=((LEFT, y.at(usual)), (WIDTH - RIGHT, y.at(usual))), css="usual",
                      title=f"median of the ranks' own work: {usual:.3g} {name}")  # fmt: skip
    return Chart(
        title="Where the time of a step goes, rank by rank",
        note=spread_note(measured, slow, hidden=len(timed) - len(shown)),
        x_label="rank", y_label=f"{name} per step",
        x_ticks=tuple((one.middle, str(one.rank.rank)) for one in columns[::every]),
        y_ticks=y.ticks(),
        legend=spread_legend(hot=bool(slow)),
        bars=tuple(bar for one in columns for bar in one.bars),
        lines=(*(one.whisker for one in columns), usual_line),
        texts=tuple(one.text for one in columns if one.times and room > 24),
    )  # fmt: skip


def spread_legend(*, hot: bool) -> tuple[tuple[str, str], ...]:
    return (
        ("c1", "own work: data, forward, optimizer"),
        *((("hot", f"own work, more than {SLOW} times the median"),) if hot else ()),
        ("wait", "backward(), with waiting for the other ranks"),
        ("whisker", "the longest step (an arrow: longer than the chart)"),
        ("usual", "median of own work"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What stands for one rank. `times`: how many times the usual its work takes, if it is slow;
    `name`: of the unit of `unit` seconds."""

    rank: RankMeasures
    middle: float
    width: float
    y: Scale
    unit: float
    name: str
    times: float | None

    def of(self, seconds: float | None) -> float:
        return (seconds or 0.0) / self.unit

    @property
    def title(self) -> str:
        step, work = self.of(self.rank.step_seconds), self.of(self.rank.work_seconds)
        return (
            f"{named(self.rank)}: step {step:.3g} {self.name}, own work {work:.3g} {self.name}, "
            f"longest {self.of(self.rank.longest_step):.3g} {self.name}"
        )

    @property
    def bars(self) -> tuple[Bar, Bar]:
        work = self.y.at(self.of(self.rank.work_seconds))
        step = self.y.at(self.of(self.rank.step_seconds))
        x = self.middle - self.width / 2
        return (
            Bar(x=x, y=work, width=self.width, height=self.y.at(0) - work,
                css="bar hot" if self.times else "bar c1", title=self.title),
            Bar(x=x, y=step, width=self.width, height=work - step, css="bar wait",
                title=self.title),
        )  # fmt: skip

    @property
    def whisker(self) -> Line:
        step, longest = self.of(self.rank.step_seconds), self.of(self.rank.longest_step)
        points = whisker_points(self.middle, self.y, step, longest)
        return Line(points=points, css="whisker", title=self.title)

    @property
    def text(self) -> Text:
        above = max(self.y.at(self.of(self.rank.step_seconds)) - 6, TOP + 10)
        return Text(
            x=self.middle + 4, y=above, text=f"{self.times:.1f}x", css="hot", anchor="start"
        )


def whisker_points(
    middle: float, y: Scale, step: float, longest: float
) -> tuple[tuple[float, float], ...]:
    """A line with a bar across its end; with an arrow's head where it goes on beyond the chart."""
    top = y.at(min(longest, y.high))
    side = 0.0 if longest <= y.high else 5.0
    head = ((middle - 4, top + side), (middle, top), (middle + 4, top + side))
    return ((middle, y.at(step)), (middle, top), *head)


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
