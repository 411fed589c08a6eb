"""A run -> one HTML page that needs nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report import charts, html, spread, timeline
from orchestrator.report.figures import of_planned
from orchestrator.report.html import Row, Table
from orchestrator.report.smooth import time_unit
from orchestrator.report.training import failure_lines
from orchestrator.runs.measures import Measures, RankMeasures
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.provenance import Provenance, Script
from orchestrator.runs.result import scores
from orchestrator.runs.store import Run

STORY = 200  # lines
ROWS = 512  # ranks of the table


def render(run: Run, outcome: Outcome, measured: Measures) -> str:
    """The whole page."""
    drawn = (
        charts.loss_chart(measured),
        charts.throughput_chart(measured),
        spread.spread_chart(measured),
        charts.memory_chart(measured),
        timeline.timeline(measured),
    )
    return html.render(
        "report.html.j2",
        [chart for chart in drawn if chart],
        outcome=outcome,
        subtitle=subtitle(run, outcome),
        figures=list(figures(outcome, measured)),
        failure="\n".join(failure_lines(outcome, shown="none")) if outcome.state != "done" else "",
        notes=outcome.notes,
        story=timeline.moments(measured)[:STORY],
        tables=[ranks_table(measured), decisions_table(outcome), origin_table(run.origin)],
        command=command_text(run.origin),
    )


def subtitle(run: Run, outcome: Outcome) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.record.created))
    ranks = f"{outcome.ranks} rank{'s' * (outcome.ranks != 1)}"
    nodes = f"{outcome.ran_on} node{'s' * (outcome.ran_on != 1)}"
    fewer = f" of {len(run.nodes)}" if outcome.ran_on < len(run.nodes) else ""
    parts = (
        f"started {began}",
        f"{of_planned(ranks, outcome.ranks, outcome.planned_ranks)} on {nodes}{fewer}",
        f"backend {outcome.backend}",
        f"precision {outcome.precision}",
    )
    return " · ".join(parts)


def figures(outcome: Outcome, measured: Measures) -> Iterator[tuple[str, str]]:
    """The numbers that are asked for first."""
    if outcome.seconds is not None:
        unit, name = time_unit(outcome.seconds)
        yield "time, all", f"{outcome.seconds / unit:.3g} {name}"
    steps = max((rank.steps for rank in measured.ranks), default=0)
    if steps:
        yield "steps", str(steps)
    if speed := sum(rank.samples_per_second or 0.0 for rank in measured.ranks):
        yield "samples/s, all ranks", f"{speed:.4g}"
    if measured.loss:
        yield "loss, last", f"{measured.loss[-1][1]:.4f}"
    for name, value in scores(outcome.result).after.items():
        yield name.upper(), f"{value:.2f}"
    yield "memory, largest rank", f"{max(r.peak_rss for r in measured.ranks) / 2**30:.2f} GiB"


def ranks_table(measured: Measures) -> Table:
    slow = charts.slow_ranks(measured.ranks)
    more = len(measured.ranks) - ROWS
    return Table(
        title="Ranks" if more <= 0 else f"Ranks (the first {ROWS} of {len(measured.ranks)})",
        head=(
            "rank",
            "node",
            "threads",
            "steps",
            "step, ms",
            "own work, ms",
            "longest, ms",
            "samples/s",
            "steps/s",
            "loss",
            "GiB, peak",
            "cores used",
        ),
        rows=tuple(
            Row(cells=tuple(rank_cells(rank)), css="hot" if rank.rank in slow else "") for rank in measured.ranks[:ROWS]
        ),
    )


def rank_cells(rank: RankMeasures) -> Iterator[str]:
    yield from (str(rank.rank), rank.node, str(rank.threads), str(rank.steps))
    for seconds in (rank.step_seconds, rank.work_seconds, rank.longest_step):
        yield number(seconds and seconds * 1e3, ".1f")
    yield number(rank.samples_per_second, ".2f")
    yield number(rank.steps_per_second, ".2f")
    yield number(rank.last_loss, ".4f")
    yield number(rank.peak_rss / 2**30, ".2f")
    yield number(rank.cores_used, ".2f")


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def decisions_table(outcome: Outcome) -> Table:
    rows = (Row(cells=(one.topic, one.value, one.reason)) for one in outcome.decisions)
    return Table(title="Decisions", head=(), rows=tuple(rows))


def origin_table(origin: Provenance) -> Table:
    """Where the run comes from; a run of an older orch has told less."""
    found = {
        "stack": origin.stack,
        "packages": ", ".join(f"{fingerprint[:12]} on {nodes}" for fingerprint, nodes in origin.fingerprints.items()),
        **(script_cells(origin.scripts) if origin.scripts else {}),
        "seeds": pairs(origin.seeds),
        "settings": pairs(origin.settings),
        "script arguments": " ".join(origin.script_args),
    }
    rows = (Row(cells=(name, value)) for name, value in found.items() if value)
    return Table(title="Where it comes from", head=(), rows=tuple(rows))


def script_cells(script: Script) -> dict[str, str]:
    git = script.git
    state = "not in git"
    if git:
        changed = f", changed since: {', '.join(git.changed)}" if git.dirty else ", unchanged"
        state = f"{git.commit}{changed}"
    return {"script": script.path, "script, sha256": script.sha256, "git": state}


def pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def command_text(origin: Provenance) -> str:
    return origin.command.shell() if origin.command else "was not recorded"
