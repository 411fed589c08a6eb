"""Measures -> the charts of loss, throughput and memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from orchestrator.report import rows
from orchestrator.report.smooth import Points, grid, smooth, thin
from orchestrator.report.traces import Chart, Trace, axis, band, colour, line, middle
from orchestrator.runs.measures import Measures, RankMeasures, is_number

SLOW = 1.2  # times the median of the ranks' own work
SPREAD = "10th to 90th percentile"
LOSS = {"xaxis": axis("step"), "yaxis": axis(), "hovermode": "x unified"}


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


def loss_chart(measured: Measures) -> Chart | None:
    """The mean as the script reports it, around it the batches of the ranks; None: nobody tells."""
    own = [
        (rank.rank, [(s.step, s.loss) for s in rank.samples if s.steps and is_number(s.loss)])
        for rank in measured.ranks
    ]
    pooled = sorted(point for _, points in own for point in points)
    if not (pooled or measured.loss):
        return None
    data = []
    if pooled:
        places = grid([step for step, _ in pooled])
        windows = smooth(pooled, places)
        data.append(band(f"batches of the ranks, {SPREAD}", windows, "--other"))
        data += own_losses(own, places)
        if not measured.loss:
            data.append(line("mean of the ranks' batches", middle(windows), "--c1", width=2.5))
    if measured.loss:
        name = "mean of all ranks, as the script reports it"
        data.append(line(name, thin(measured.loss), "--c1", width=2.5))
    return Chart(title="Loss", data=tuple(data), layout=LOSS)


def own_losses(own: Sequence[tuple[int, Points]], places: Sequence[float]) -> list[Trace]:
    """A line for each rank, shown when it is asked for in the legend."""
    if not 1 < len(own) <= rows.ROWS:
        return []
    return [
        line(f"rank {rank}", middle(smooth(points, places)), colour(index + 1), width=1, hidden=True)
        for index, (rank, points) in enumerate(own)
        if points
    ]


def throughput_chart(measured: Measures) -> Chart | None:
    found, unit = rate(measured)
    samples = unit == "samples/s"
    return rows.chart(
        found,
        {rank.rank: named(rank) for rank in measured.ranks},
        slow_ranks(measured.ranks),
        title=f"Throughput, {unit}",
        total=samples,
        note="" if samples else "The script does not tell its samples; these are optimizer steps.",
    )


def rate(measured: Measures) -> tuple[dict[int, Points], str]:
    """(rank -> (seconds since the start, samples a second), unit); steps where the script tells no
    samples."""
    parts = {rank.rank: rank.stretches() for rank in measured.ranks}
    told = any(one.samples_per_second for found in parts.values() for one in found)
    found: dict[int, Points] = {
        rank: [
            (one.time - measured.began, (one.samples_per_second or 0.0) if told else one.steps_per_second)
            for one in ones
        ]
        for rank, ones in parts.items()
    }
    return found, "samples/s" if told else "steps/s"


def memory_chart(measured: Measures) -> Chart | None:
    """Resident memory of each rank."""
    found = {
        rank.rank: [(s.time - measured.began, s.rss_bytes / 2**30) for s in rank.samples] for rank in measured.ranks
    }
    names = {rank.rank: named(rank) for rank in measured.ranks}
    return rows.chart(found, names, {}, title="Resident memory, GiB", total=False)
