"""The report of several runs as one HTML page: a comparison, an array or a scaling series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.printable import counted
from orchestrator.report import html
from orchestrator.report.charts import LOSS, rate
from orchestrator.report.comparison import ABSENT, Side, common_step, figures, settings, shown
from orchestrator.report.html import Row, Table
from orchestrator.report.rows import summed
from orchestrator.report.smooth import Points, grid, smooth, thin, time_unit
from orchestrator.report.traces import COLOURS, Chart, Trace, axis, colour, hover, line
from orchestrator.runs.measures import Measures

DASHES = ("solid", "dash", "dot", "dashdot")


def render(sides: Sequence[Side]) -> str:
    """Return the page that compares two or more runs."""
    drawn = (loss_chart(sides), throughput_chart(sides), scaling_chart(sides))
    return html.render(
        "several.html.j2",
        [chart for chart in drawn if chart],
        runs=[(side.run.id, side.outcome.recipe, side.outcome.state) for side in sides],
        tables=[settings_table(sides), figures_table(sides)],
    )


def styled(index: int, side: Side, points: Points) -> Trace:
    """Return the line of a run in its colour, dashed if there are more runs than colours."""
    dash = DASHES[index // COLOURS % len(DASHES)]
    return line(side.run.id, points, colour(index), dash=dash)


def loss_chart(sides: Sequence[Side]) -> Chart | None:
    """Return the chart of the loss by step, or None if no run has reported a loss."""
    data = []
    for index, side in enumerate(sides):
        if side.measured.loss:
            data.append(styled(index, side, thin(side.measured.loss)))
    return Chart(title="Loss", data=tuple(data), layout=LOSS) if data else None


def speeds(measured: Measures) -> tuple[float, str]:
    """Return the rate of all ranks together during training and its unit; 0.0 if it is unknown."""
    if samples_per_second := sum(rank.samples_per_second or 0.0 for rank in measured.ranks):
        return samples_per_second, "samples/s"
    return max((rank.steps_per_second or 0.0 for rank in measured.ranks), default=0.0), "steps/s"


def throughput_chart(sides: Sequence[Side]) -> Chart | None:
    """Return the chart of each run's total throughput, or None if the runs' units differ."""
    rates = [(index, side, *rate(side.measured)) for index, side in enumerate(sides)]
    units = {unit for _, _, points, unit in rates if any(points.values())}
    times = [time for _, _, points, _ in rates for rank_points in points.values() for time, _ in rank_points]
    if len(units) != 1:
        return None
    seconds, name = time_unit(max(times))
    data = []
    for index, side, points, _ in rates:
        windows = {
            rank: smooth(rank_points, grid([time for series in points.values() for time, _ in series]))
            for rank, rank_points in points.items()
            if rank_points
        }
        summed_up = [(time / seconds, value) for time, value in summed(windows)]
        data.append(styled(index, side, summed_up))
    return Chart(
        title=f"Throughput of all ranks together, {units.pop()}",
        data=tuple(data),
        layout={
            "xaxis": axis(f"time since the start, {name}"),
            "yaxis": axis(rangemode="tozero"),
            "hovermode": "x unified",
        },
    )


def scaling_chart(sides: Sequence[Side]) -> Chart | None:
    """Return the chart of the mean throughput by number of ranks, or None if that number is the same."""
    side_speeds = [(side, *speeds(side.measured)) for side in sides]
    if len({unit for _, _, unit in side_speeds}) != 1 or not all(speed for _, speed, _ in side_speeds):
        return None
    points = sorted((len(side.measured.ranks), speed, side.run.id) for side, speed, _ in side_speeds)
    unit, (least, base, _), most = side_speeds[0][2], points[0], points[-1][0]
    if least == most:
        return None
    ideal = [(least, base), (most, base * most / least)]
    measured: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "measured",
        "x": [ranks for ranks, _, _ in points],
        "y": [speed for _, speed, _ in points],
        "hovertext": [
            hover(
                f"{run}: {counted(ranks, 'rank')}, {speed:.4g} {unit}, "
                f"{speed * least / (base * ranks):.0%} of the ideal"
            )
            for ranks, speed, run in points
        ],
        "hoverinfo": "text",
        "line": {"color": "--c1"},
        "marker": {"color": "--c1", "size": 8},
    }
    return Chart(
        title=f"Scaling: {unit} by the number of ranks",
        note=f"Ideal: {counted(least, 'rank')} of {points[0][2]}, times the number.",
        data=(line("ideal", ideal, "--other", dash="dash"), measured),
        layout={"xaxis": axis("ranks", rangemode="tozero"), "yaxis": axis(rangemode="tozero")},
    )


def settings_table(sides: Sequence[Side]) -> Table:
    """Return the table of the settings that differ between the runs."""
    run_settings = [dict(settings(side)) for side in sides]
    names = dict.fromkeys(name for values in run_settings for name in values)
    rows = [(name, *(values.get(name, ABSENT) for values in run_settings)) for name in names]
    return table("Settings that differ", sides, [row for row in rows if len(set(row[1:])) > 1])


def figures_table(sides: Sequence[Side]) -> Table:
    """Return the table of the figures of all runs."""
    return table("Figures", sides, list(figure_rows(sides)))


def figure_rows(sides: Sequence[Side]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each figure that at least one run has."""
    step = common_step(sides)
    run_figures = [dict(figures(side, step)) for side in sides]
    for name, unit in dict.fromkeys(name for values in run_figures for name in values):
        cells = (shown(values.get((name, unit))) for values in run_figures)
        yield (f"{name}, {unit}" if unit else name, *cells)


def table(title: str, sides: Sequence[Side], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table with a column for each run."""
    head = ("", *(side.run.id for side in sides))
    return Table(title=title, head=head, rows=tuple(Row(cells=row) for row in rows))
