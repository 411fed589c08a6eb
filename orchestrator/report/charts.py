"""Measures -> charts, as shapes with places; templates/report.html.j2 draws them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from orchestrator.report.scales import Scale, exact, scale, thin, time_unit
from orchestrator.runs.measures import Measures, RankMeasures, Sample

WIDTH, HEIGHT = 760.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 10.0, 40.0
COLOURS = 8  # that the page has; more ranks than this are drawn alike, but for the slowest
SLOW = 1.2  # times the median of the ranks' own work


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
    return over_time(
        found,
        measured.ranks,
        title="Throughput of each rank",
        label="samples/s" if told else "steps/s",
        note="" if told else "The script does not tell its samples; these are optimizer steps.",
    )


def over_time(
    found: Mapping[int, Sequence[tuple[float, float]]],
    ranks: Sequence[RankMeasures],
    *,
    title: str,
    label: str,
    note: str = "",
) -> Chart | None:
    """A line for each rank. `found`: rank -> (seconds since the start, value); None: no values."""
    points = [point for line in found.values() for point in line]
    if not points:
        return None
    unit, name = time_unit(max(at for at, _ in points))
    x = exact(0.0, max(at for at, _ in points) / unit, LEFT, WIDTH - RIGHT)
    y = scale([value for _, value in points], HEIGHT - BOTTOM, TOP, zero=True)
    css = colours(ranks)
    lines = [
        Line(
            points=places([(at / unit, value) for at, value in found[rank.rank]], x, y),
            css=f"line {css[rank.rank]}",
            title=named(rank),
        )
        for rank in sorted(ranks, key=lambda rank: css[rank.rank] != "other")  # on top of those
        if found[rank.rank]
    ]
    return Chart(
        title=title, note=note, x_label=f"time since the start, {name}", y_label=label,
        x_ticks=x.ticks(), y_ticks=y.ticks(), legend=rank_legend(ranks), lines=tuple(lines),
    )  # fmt: skip


def active(rank: RankMeasures) -> tuple[Sample, ...]:
    """From the first step to the last: what is before and after is no throughput."""
    with_steps = [index for index, sample in enumerate(rank.samples) if sample.steps]
    return rank.samples[with_steps[0] : with_steps[-1] + 1] if with_steps else ()


def memory_chart(measured: Measures) -> Chart | None:
    """Resident memory of each rank."""
    found = {
        rank.rank: [(s.time - measured.began, s.rss_bytes / 2**30) for s in rank.samples]
        for rank in measured.ranks
    }
    return over_time(found, measured.ranks, title="Memory of each rank", label="GiB resident")
