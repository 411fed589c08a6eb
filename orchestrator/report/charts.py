"""Measures -> charts, as shapes with places; templates/report.html.j2 draws them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from orchestrator.measures import Measures, RankMeasures, Sample
from orchestrator.report.scales import Scale, exact, scale, thin, time_unit

WIDTH, HEIGHT = 760.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 10.0, 40.0
COLOURS = 8  # that the page has; more ranks than this are drawn alike, but for the slowest
SLOW = 1.2  # times the median of the ranks' own work
WHISKERS = 1.6  # times the highest bar, so that one long step does not flatten all bars
RANKS = 128  # as many as a chart of one bar a rank has room for
LABEL = 30.0  # pixels that the label of a rank and the gap after it take


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    points: tuple[tuple[float, float], ...]
    css: str
    title: str = ""

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x:g} {y:g}" for x, y in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    css: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    x: float
    y: float
    text: str
    css: str = "label"
    anchor: str = "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`x_ticks` and `y_ticks`: (pixel, text); `legend`: (class of a colour, text)."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    note: str = ""
    height: float = HEIGHT
    left: float = LEFT
    legend: tuple[tuple[str, str], ...] = ()
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    texts: tuple[Text, ...] = ()
    width: float = WIDTH
    right: float = WIDTH - RIGHT
    top: float = TOP
    grid: bool = True

    @property
    def floor(self) -> float:
        return self.height - BOTTOM


def named(rank: RankMeasures) -> str:
    return f"rank {rank.rank} on {rank.node}"


def slow_ranks(ranks: Sequence[RankMeasures]) -> dict[int, float]:
    """Rank -> how many times the usual its own work takes, for those that hold the others up."""
    work = {r.rank: r.work_seconds for r in ranks if r.work_seconds is not None}
    steps = [r.step_seconds for r in ranks if r.step_seconds is not None]
    if len(work) < 2 or not steps:
        return {}
    usual = median_low(work.values())
    # What is small against the step itself holds nobody up.
    worth = 0.05 * median_low(steps)
    return {
        rank: seconds / max(usual, 1e-9)
        for rank, seconds in work.items()
        if seconds > SLOW * usual and seconds - usual > worth
    }


def colours(ranks: Sequence[RankMeasures]) -> dict[int, str]:
    """Rank -> the class of its colour."""
    if len(ranks) <= COLOURS:
        return {rank.rank: f"c{index + 1}" for index, rank in enumerate(ranks)}
    slow = slow_ranks(ranks)
    return {rank.rank: "hot" if rank.rank in slow else "other" for rank in ranks}


def rank_legend(ranks: Sequence[RankMeasures]) -> tuple[tuple[str, str], ...]:
    css = colours(ranks)
    if len(ranks) <= COLOURS:
        return tuple((css[rank.rank], named(rank)) for rank in ranks)
    hot = tuple(("hot", named(rank)) for rank in ranks if css[rank.rank] == "hot")
    return (*hot[:COLOURS], ("other", f"{'the other' if hot else 'all'} ranks"))


def places(
    points: Sequence[tuple[float, float]], x: Scale, y: Scale
) -> tuple[tuple[float, float], ...]:
    return tuple((x.at(one), y.at(other)) for one, other in thin(points))


def loss_chart(measured: Measures) -> Chart | None:
    """The mean as the script reports it, before it each rank's own loss; None: nobody tells."""
    own = {
        rank.rank: [(s.step, s.loss) for s in rank.samples if s.loss is not None and s.steps]
        for rank in measured.ranks
    }
    points = [*measured.loss, *(point for line in own.values() for point in line)]
    if not points:
        return None
    steps = [step for step, _ in points]
    x = exact(min(0.0, *steps), max(steps), LEFT, WIDTH - RIGHT)
    y = scale([loss for _, loss in points], HEIGHT - BOTTOM, TOP)
    lines = [
        Line(points=places(line, x, y), css="line other thin", title=f"rank {rank}, own batches")
        for rank, line in own.items()
        if line
    ]
    legend = [("other", "each rank, its own batches")] if lines else []
    if measured.loss:
        lines.append(Line(points=places(measured.loss, x, y), css="line c1 strong", title="mean"))
        legend.insert(0, ("c1", "mean of all ranks, as the script reports it"))
    return Chart(
        title="Loss", x_label="step", y_label="loss", x_ticks=x.ticks(), y_ticks=y.ticks(),
        legend=tuple(legend), lines=tuple(lines),
    )  # fmt: skip


def throughput_chart(measured: Measures) -> Chart | None:
    """Samples a second of each rank, or steps where the script tells no samples."""
    told = any(s.samples_per_second for rank in measured.ranks for s in rank.samples)
    found = {
        rank.rank: [
            (
                s.time - measured.began,
                (s.samples_per_second or 0.0) if told else s.steps / s.seconds,
            )
            for s in active(rank)
        ]
        for rank in measured.ranks
    }
    points = [point for line in found.values() for point in line]
    if not points:
        return None
    unit, name = time_unit(max(at for at, _ in points))
    x = exact(0.0, max(at for at, _ in points) / unit, LEFT, WIDTH - RIGHT)
    y = scale([value for _, value in points], HEIGHT - BOTTOM, TOP, zero=True)
    css = colours(measured.ranks)
    lines = [
        Line(
            points=places([(at / unit, value) for at, value in found[rank.rank]], x, y),
            css=f"line {css[rank.rank]}",
            title=named(rank),
        )
        for rank in sorted(measured.ranks, key=lambda rank: css[rank.rank] != "other")
        if found[rank.rank]
    ]
    return Chart(
        title="Throughput of each rank",
        note="" if told else "The script does not tell its samples; these are optimizer steps.",
        x_label=f"time since the start, {name}",
        y_label="samples/s" if told else "steps/s",
        x_ticks=x.ticks(), y_ticks=y.ticks(),
        legend=rank_legend(measured.ranks), lines=tuple(lines),
    )  # fmt: skip


def active(rank: RankMeasures) -> tuple[Sample, ...]:
    """From the first step to the last: what is before and after is no throughput."""
    with_steps = [index for index, sample in enumerate(rank.samples) if sample.steps]
    return rank.samples[with_steps[0] : with_steps[-1] + 1] if with_steps else ()


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
    width = min(room * 0.7, 46.0)
    bars, lines, texts = [], [], []
    for index, rank in enumerate(shown):
        middle = LEFT + room * (index + 0.5)
        step, work = (rank.step_seconds or 0.0) / unit, (rank.work_seconds or 0.0) / unit
        longest = (rank.longest_step or 0.0) / unit
        title = (
            f"{named(rank)}: step {step:.3g} {name}, own work {work:.3g} {name}, "
            f"longest {longest:.3g} {name}"
        )
        bars += [
            Bar(x=middle - width / 2, y=y.at(work), width=width, height=y.at(0) - y.at(work),
                css="bar hot" if rank.rank in slow else "bar c1", title=title),
            Bar(x=middle - width / 2, y=y.at(step), width=width, height=y.at(work) - y.at(step),
                css="bar wait", title=title),
        ]  # fmt: skip
        lines.append(
            Line(points=whisker_points(middle, y, step, longest), css="whisker", title=title)
        )
        if rank.rank in slow and room > 24:
            times = f"{slow[rank.rank]:.1f}x"
            place = max(y.at(step) - 6, TOP + 10)
            texts.append(Text(x=middle + 4, y=place, text=times, css="hot", anchor="start"))
    every = math.ceil(LABEL / room)
    usual = median_low([rank.work_seconds or 0.0 for rank in timed]) / unit
    lines.append(Line(points=((LEFT, y.at(usual)), (WIDTH - RIGHT, y.at(usual))), css="usual",
                      title=f"median of the ranks' own work: {usual:.3g} {name}"))  # fmt: skip
    return Chart(
        title="Where the time of a step goes, rank by rank",
        note=spread_note(measured, slow, hidden=len(timed) - len(shown)),
        x_label="rank", y_label=f"{name} per step",
        x_ticks=tuple(
            (LEFT + room * (index + 0.5), str(rank.rank))
            for index, rank in enumerate(shown) if index % every == 0
        ),
        y_ticks=y.ticks(),
        legend=(
            ("c1", "own work: data, forward, optimizer"),
            *((("hot", f"own work, more than {SLOW} times the median"),) if slow else ()),
            ("wait", "backward(), with waiting for the other ranks"),
            ("whisker", "the longest step (an arrow: longer than the chart)"),
            ("usual", "median of own work"),
        ),
        bars=tuple(bars), lines=tuple(lines), texts=tuple(texts),
    )  # fmt: skip


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


def memory_chart(measured: Measures) -> Chart | None:
    """Resident memory of each rank."""
    found = {
        rank.rank: [(s.time - measured.began, s.rss_bytes / 2**30) for s in rank.samples]
        for rank in measured.ranks
    }
    points = [point for line in found.values() for point in line]
    if not points:
        return None
    unit, name = time_unit(max(at for at, _ in points))
    x = exact(0.0, max(at for at, _ in points) / unit, LEFT, WIDTH - RIGHT)
    y = scale([value for _, value in points], HEIGHT - BOTTOM, TOP, zero=True)
    css = colours(measured.ranks)
    return Chart(
        title="Memory of each rank", x_label=f"time since the start, {name}",
        y_label="GiB resident", x_ticks=x.ticks(), y_ticks=y.ticks(),
        legend=rank_legend(measured.ranks),
        lines=tuple(
            Line(points=places([(at / unit, value) for at, value in found[rank.rank]], x, y),
                 css=f"line {css[rank.rank]}", title=named(rank))
            for rank in measured.ranks if found[rank.rank]
        ),
    )  # fmt: skip
