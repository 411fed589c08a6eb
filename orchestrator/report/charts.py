"""Charts of the loss, the throughput and the memory of a run, built from its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from orchestrator.report import rows
from orchestrator.report.smooth import Points, grid, smooth, thin
from orchestrator.report.traces import Chart, Trace, axis, band, colour, line, middle
from orchestrator.runs.measures import Measures, RankMeasures, is_number

SLOW = 1.2  # A rank is slow if its own work takes longer than this multiple of the median.
SPREAD = "10th to 90th percentile"
LOSS = {"xaxis": axis("step"), "yaxis": axis(), "hovermode": "x unified"}


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


def loss_chart(measured: Measures) -> Chart | None:
    """Return the chart of the loss, or None if neither the script nor a rank reports a loss.

    It shows the mean as the script reports it, above the spread of the losses of the ranks' batches.
    """
    rank_losses = [
        (rank.rank, [(s.step, s.loss) for s in rank.samples if s.steps and is_number(s.loss)])
        for rank in measured.ranks
    ]
    pooled = sorted(point for _, points in rank_losses for point in points)
    if not (pooled or measured.loss):
        return None
    data = []
    if pooled:
        steps = grid([step for step, _ in pooled])
        windows = smooth(pooled, steps)
        data.append(band(f"batches of the ranks, {SPREAD}", windows, "--other"))
        data += own_losses(rank_losses, steps)
        if not measured.loss:
            data.append(line("mean of the ranks' batches", middle(windows), "--c1", width=2.5))
    if measured.loss:
        name = "mean of all ranks, as the script reports it"
        data.append(line(name, thin(measured.loss), "--c1", width=2.5))
    return Chart(title="Loss", data=tuple(data), layout=LOSS)


def own_losses(rank_losses: Sequence[tuple[int, Points]], steps: Sequence[float]) -> list[Trace]:
    """Return a line for each rank, hidden until it is selected in the legend."""
    if not 1 < len(rank_losses) <= rows.ROWS:
        return []
    return [
        line(f"rank {rank}", middle(smooth(points, steps)), colour(index + 1), width=1, hidden=True)
        for index, (rank, points) in enumerate(rank_losses)
        if points
    ]


def throughput_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's throughput, or None without measurements."""
    rates, unit = rate(measured)
    samples = unit == "samples/s"
    return rows.chart(
        rates,
        {rank.rank: rank_label(rank) for rank in measured.ranks},
        slow_ranks(measured.ranks),
        title=f"Throughput, {unit}",
        total=samples,
        note="" if samples else "The script does not tell its samples; these are optimizer steps.",
    )


def rate(measured: Measures) -> tuple[dict[int, Points], str]:
    """Return the rate of each rank over time, and its unit.

    The unit is steps per second if the script reports no samples.

    Returns:
        For each rank its points (seconds since the start, rate), and `samples/s` or `steps/s`.
    """
    stretches_by_rank = {rank.rank: rank.stretches() for rank in measured.ranks}
    has_samples = any(stretch.samples_per_second for rates in stretches_by_rank.values() for stretch in rates)
    rates: dict[int, Points] = {
        rank: [
            (
                stretch.time - measured.began,
                (stretch.samples_per_second or 0.0) if has_samples else stretch.steps_per_second,
            )
            for stretch in stretches
        ]
        for rank, stretches in stretches_by_rank.items()
    }
    return rates, "samples/s" if has_samples else "steps/s"


def memory_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's resident memory."""
    memory = {
        rank.rank: [(s.time - measured.began, s.rss_bytes / 2**30) for s in rank.samples] for rank in measured.ranks
    }
    names = {rank.rank: rank_label(rank) for rank in measured.ranks}
    return rows.chart(memory, names, {}, title="Resident memory, GiB", total=False)
