"""Charts of the loss, the throughput and the memory of a run, built from its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, median_low

from orchestrator.report.traces import Chart, Points, axis, colour, line, thin, time_unit
from orchestrator.runs.measures import Measures, RankMeasures, is_number

SLOW = 1.2  # A rank is slow if its own work takes longer than this multiple of the median.
LINES = 8  # maximum number of ranks with a line in a chart
INTERVALS = 200  # number of parts of the time in which the median of many ranks is taken


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


def describe_stragglers(measured: Measures) -> str:
    """Return a sentence that names the slowest ranks, or says that there are none; empty without timed steps."""
    if not any(rank.step_seconds for rank in measured.ranks):
        return ""
    slow = slow_ranks(measured.ranks)
    by_rank = {rank.rank: rank for rank in measured.ranks}
    worst = sorted(slow.items(), key=lambda item: -item[1])[:3]
    stragglers = [f"{rank_label(by_rank[rank])} needs {times:.1f} times the median" for rank, times in worst]
    more = f", and {len(slow) - len(worst)} more" if len(slow) > len(worst) else ""
    return f"Stragglers: {'; '.join(stragglers)}{more}." if slow else "No rank holds the others up."


def loss_chart(measured: Measures) -> Chart | None:
    """Return the chart of the loss, or None if neither the script nor a rank reports a loss."""
    points, note = measured.loss, "The mean of all ranks, as the script reports it."
    if not points:
        samples = (sample for rank in measured.ranks for sample in rank.samples if sample.steps)
        points = tuple(sorted((s.step, s.loss) for s in samples if is_number(s.loss)))
        note = "The losses of the ranks' own batches."
    if not points:
        return None
    layout = {"xaxis": axis("step"), "yaxis": axis(), "hovermode": "x unified"}
    return Chart(title="Loss", note=note, data=(line("loss", thin(points), "--c1", width=2.5),), layout=layout)


def throughput_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's samples per second, or steps per second if no samples are reported."""
    stretches = {rank.rank: rank.stretches() for rank in measured.ranks}
    has_samples = any(stretch.samples_per_second for rates in stretches.values() for stretch in rates)
    rates = {
        rank: [
            (s.time - measured.began, (s.samples_per_second or 0.0) if has_samples else s.steps_per_second)
            for s in rank_stretches
        ]
        for rank, rank_stretches in stretches.items()
    }
    unit = "samples/s" if has_samples else "steps/s"
    steps = "" if has_samples else "The script does not tell its samples; these are optimizer steps."
    note = " ".join(filter(None, (describe_stragglers(measured), steps)))
    return ranks_chart(measured, rates, title=f"Throughput of each rank, {unit}", note=note)


def memory_chart(measured: Measures) -> Chart | None:
    """Return the chart of each rank's resident memory."""
    memory = {
        rank.rank: [(s.time - measured.began, s.rss_bytes / 2**30) for s in rank.samples] for rank in measured.ranks
    }
    return ranks_chart(measured, memory, title="Resident memory of each rank, GiB")


def gpu_memory_chart(measured: Measures) -> Chart | None:
    """Return the chart of the memory that torch holds on the GPU of each rank, or None if no rank uses one."""
    memory = {
        rank.rank: [(s.time - measured.began, s.gpu_bytes / 2**30) for s in rank.samples if s.gpu_bytes is not None]
        for rank in measured.ranks
    }
    return ranks_chart(measured, memory, title="GPU memory that torch holds, GiB")


def ranks_chart(
    measured: Measures, points_by_rank: Mapping[int, Points], *, title: str, note: str = ""
) -> Chart | None:
    """Return a chart with a line for each rank, or None if there are no values.

    If there are more than LINES ranks, it has the median of all ranks and a line for each of the slowest.

    Args:
        measured: the measurements of the run.
        points_by_rank: the points (seconds since the start, value) by rank.
        title: the title of the chart.
        note: a sentence below the title.
    """
    times = [seconds for points in points_by_rank.values() for seconds, _ in points]
    if not times:
        return None
    unit, unit_name = time_unit(max(times))
    slow = slow_ranks(measured.ranks)
    labels = {rank.rank: rank_label(rank) for rank in measured.ranks}
    drawn = sorted(points_by_rank)
    lines = []
    if len(drawn) > LINES:
        middle = median_line(points_by_rank, max(times))
        lines = [line(f"median of {len(drawn)} ranks", in_units(middle, unit), "--c1")]
        drawn = sorted(sorted(slow, key=lambda rank: -slow[rank])[:LINES])
    for index, rank in enumerate(drawn):
        if points_by_rank[rank]:
            rank_colour = "--hot" if rank in slow else colour(index)
            lines.append(line(labels[rank], in_units(thin(points_by_rank[rank]), unit), rank_colour, width=1.5))
    layout = {"xaxis": axis(f"time since the start, {unit_name}"), "yaxis": axis(rangemode="tozero")}
    return Chart(title=title, note=note, data=tuple(lines), layout=layout)


def in_units(points: Points, unit: float) -> list[tuple[float, float]]:
    """Return the points with their times divided by the seconds of a unit."""
    return [(round(seconds / unit, 4), value) for seconds, value in points]


def median_line(points_by_rank: Mapping[int, Points], last: float) -> list[tuple[float, float]]:
    """Return the median of the ranks' means in each of INTERVALS parts of the time until `last`."""
    length = max(last, 1e-9) / INTERVALS
    means: dict[int, list[float]] = {}
    for points in points_by_rank.values():
        values: dict[int, list[float]] = {}
        for seconds, value in points:
            values.setdefault(int(seconds / length), []).append(value)
        for interval, interval_values in values.items():
            means.setdefault(interval, []).append(fmean(interval_values))
    return [((interval + 0.5) * length, median(means[interval])) for interval in sorted(means)]
