"""The results of `orch bench`: tables, JSON and a page with charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orch_node.protocol import values

from orchestrator.model.measurement import Measurement, NodeRates, RunRates, Slow
from orchestrator.model.printable import described_size
from orchestrator.report.charts import Chart, axis, colour, line, plain
from orchestrator.report.listing import cell, json_text, table
from orchestrator.report.page import render

MAX_LINKS = 20  # rows of the table; the slowest links come first
Rows = Sequence[Mapping[str, Any]]


def as_json(measurement: Measurement, slow: Sequence[Slow]) -> str:
    """Return the results as JSON."""
    return json_text("bench", values.record(measurement), slow=list(slow))


def as_text(measurement: Measurement, slow: Sequence[Slow]) -> str:
    """Return the tables, and what is slow."""
    tables = [table(rows, list(rows[0])) for _, rows in sections(measurement) if rows]
    return "\n\n".join([*tables, "\n".join(conclusions(measurement, slow))])


def conclusions(measurement: Measurement, slow: Sequence[Slow]) -> Iterator[str]:
    """Yield a line for each slow node or link and each closed port, or that there is none."""
    for port in measurement.closed_ports:
        yield f"closed: {port.source} cannot reach port {port.port} of {port.destination}: {cell(port.reason)}"
    for item in slow:
        yield f"slow: {item.describe()}"
    if not (slow or measurement.closed_ports):
        yield "no slow node or link"


def sections(measurement: Measurement) -> Iterator[tuple[str, Rows]]:
    """Yield the title and the rows of each table."""
    yield "Nodes", [node_row(node) for node in measurement.nodes]
    links = sorted(measurement.links, key=lambda link: link.gbit)
    more = f" (the slowest {MAX_LINKS} of {len(links)})" if len(links) > MAX_LINKS else ""
    rows = [
        {"from": link.source, "to": link.destination, "Gbit/s": f"{link.gbit:.3g}", "us": f"{link.microseconds:.0f}"}
        for link in links[:MAX_LINKS]
    ]
    yield f"Links{more}", rows
    sizes = sorted({int(size) for run in measurement.runs for size in run.reductions})
    reductions = [
        run_row(run) | {described_size(size): number(run.reductions.get(str(size)), ".0f") for size in sizes}
        for run in measurement.runs
        if run.reductions
    ]
    yield "All-reduce, microseconds", reductions
    best = max((run.samples for run in measurement.runs), default=0.0)
    steps = [
        run_row(run)
        | {"precision": run.precision, "samples/s": f"{run.samples:.4g}", "of the best": f"{run.samples / best:.2f}"}
        for run in measurement.runs
        if run.samples
    ]
    yield "Training step", steps


def node_row(node: NodeRates) -> dict[str, Any]:
    rates = node.rates
    return {
        "node": node.node,
        "cores": node.cores,
        "fp32 TFLOP/s": f"{rates.fp32:.3g}",
        "bf16 TFLOP/s": number(rates.bf16 or None, ".3g"),
        "memory GB/s": f"{rates.memory:.3g}",
        "core time": f"{rates.cpu:.0%}",
        "MHz": number(rates.megahertz or None, ".0f"),
        "network": f"{rates.interface or '-'}{f' {rates.speed / 1000:g} Gbit/s' if rates.speed else ''}",
    }


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def run_row(run: RunRates) -> dict[str, Any]:
    return {"backend": run.backend, "fabric": run.fabric or "auto", "ranks of a node": run.ranks}


def page(measurement: Measurement, slow: Sequence[Slow], title: str) -> str:
    """Return the results as an HTML page."""
    subjects = {item.subject for item in slow}
    tables = []
    for name, rows in sections(measurement):
        row_subjects = [row.get("node") or f"{row.get('from')} to {row.get('to')}" for row in rows]  # as slow ones are
        hot = [index for index, subject in enumerate(row_subjects) if subject in subjects]
        tables += [{"title": name, "rows": rows, "hot": hot}] if rows else []
    return render(
        "bench.html.j2",
        [chart for chart in charts(measurement) if chart.data],
        title=title,
        subtitle=f"measured {measurement.date} with the stack {measurement.stack}",
        conclusions=list(conclusions(measurement, slow)),
        tables=tables,
    )


def charts(measurement: Measurement) -> Iterator[Chart]:
    """Yield the charts of the page."""
    nodes = [plain(node.node) for node in measurement.nodes]
    rows = [(node.rates.fp32, node.rates.bf16, node.rates.memory / 100) for node in measurement.nodes]
    rates = dict(zip(("FP32, TFLOP/s", "BF16, TFLOP/s", "memory, 100 GB/s"), zip(*rows, strict=True), strict=False))
    bars = [
        {"type": "bar", "name": name, "x": nodes, "y": series, "marker": {"color": colour(index)}}
        for index, (name, series) in enumerate(rates.items())
        if any(series)
    ]
    yield Chart(title="Rates of the nodes", data=bars, layout={"yaxis": axis(rangemode="tozero")})
    links = measurement.links
    # The bandwidth of each direction of each link is the colour of a square.
    squares = {
        "kind": "square",
        "x": [plain(link.destination) for link in links],
        "y": [plain(link.source) for link in links],
        "text": [f"{link.gbit:.3g} Gbit/s, {link.microseconds:.3g} microseconds" for link in links],
        "marker": {"kind": "scale", "color": [link.gbit for link in links], "colorbar": {"title": {"text": "Gbit/s"}}},
    }
    ends = {"xaxis": axis("to", type="category"), "yaxis": axis("from", type="category")}
    yield Chart(title="Links", data=[squares] if links else [], layout=ends)
    lines = tuple(
        line(f"{run.backend} {run.fabric} {run.ranks}", [(int(x), y) for x, y in run.reductions.items()], colour(index))
        for index, run in enumerate(run for run in measurement.runs if run.reductions)
    )
    layout = {"xaxis": axis("bytes", type="log"), "yaxis": axis("microseconds", type="log")}
    yield Chart(title="All-reduce", data=lines, layout=layout)
