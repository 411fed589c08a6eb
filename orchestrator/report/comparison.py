"""Comparison of two runs: the settings that differ, and the figures of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from orchestrator.model.hosts import fold
from orchestrator.report.listing import SCHEMA, table
from orchestrator.runs.measures import Measures, scores
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.provenance import Script
from orchestrator.runs.store import Run

ABSENT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run to compare, with its outcome and its measurements."""

    run: Run
    outcome: Outcome
    measured: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting that differs, with its value in each run."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured figure of both runs.

    Attributes:
        name: the name of the figure.
        unit: its unit, or "".
        a: the value of the first run, or None if it is missing.
        b: the value of the second run, or None if it is missing.
        ratio: b/a, or None if a value is missing or a is 0.
    """

    name: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two runs, and the figures of both."""

    a: str
    b: str
    states: tuple[str, str]
    differences: tuple[Difference, ...]
    figures: tuple[Figure, ...]


def compare(a: Side, b: Side) -> Comparison:
    """Return the settings that differ, and all figures that at least one of the runs has."""
    settings_a, settings_b = dict(settings(a)), dict(settings(b))
    names = dict.fromkeys([*settings_a, *settings_b])
    step = common_step(a, b)
    figures_a, figures_b = dict(figures(a, step)), dict(figures(b, step))
    return Comparison(
        a=a.run.id,
        b=b.run.id,
        states=(a.outcome.state, b.outcome.state),
        differences=tuple(
            Difference(name=name, a=settings_a.get(name, ABSENT), b=settings_b.get(name, ABSENT))
            for name in names
            if settings_a.get(name) != settings_b.get(name)
        ),
        figures=tuple(
            figure(name, unit, figures_a.get((name, unit)), figures_b.get((name, unit)))
            for name, unit in dict.fromkeys([*figures_a, *figures_b])
        ),
    )


def figure(name: str, unit: str, a: float | None, b: float | None) -> Figure:
    ratio = b / a if a and b is not None else None
    return Figure(name=name, unit=unit, a=a, b=b, ratio=ratio)


def settings(side: Side) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of every setting and decision of a run."""
    record, origin = side.run.record, side.run.origin
    yield "recipe", record.recipe
    yield "stack", origin.stack or ABSENT
    yield "backend", record.backend
    yield "precision", side.outcome.precision
    yield "nodes", fold(side.run.nodes)
    yield "ranks", str(len(record.layout))
    yield "threads of a rank", one_or_all(placement.threads for placement in record.layout)
    yield from ((f"set {name}", str(value)) for name, value in origin.settings.items())
    yield "script arguments", " ".join(origin.script_args) or ABSENT
    yield "packages", ", ".join(fingerprint[:12] for fingerprint in origin.fingerprints) or ABSENT
    yield from script_settings(origin.scripts)


def script_settings(script: Script | None) -> Iterator[tuple[str, str]]:
    """Yield the script's path and hash, and the state of its git checkout."""
    git = script.git if script else None
    yield "script", script.path if script else ABSENT
    yield "script, sha256", script.sha256[:12] if script else ABSENT
    yield "git commit", git.commit[:12] if git else ABSENT
    yield "git, changed since", (", ".join(git.changed) if git else "") or ABSENT


def one_or_all(values: Iterator[Any]) -> str:
    """Return the distinct values, separated by commas."""
    return ", ".join(map(str, dict.fromkeys(values)))


def common_step(a: Side, b: Side) -> float | None:
    """Return the last step whose loss both runs have reported, or None."""
    return max(dict(a.measured.loss).keys() & dict(b.measured.loss).keys(), default=None)


def figures(side: Side, step: float | None) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the figures that were measured and scored, each as ((name, unit), value).

    Args:
        side: the run.
        step: a step at which the losses of the runs can be compared, or None.
    """
    measured, scored = side.measured, scores(side.outcome.result)
    ranks = [rank for rank in measured.ranks if rank.steps]
    if side.outcome.seconds is not None:
        yield ("time, all", "s"), side.outcome.seconds
    if ranks:
        yield ("steps", ""), float(max(rank.steps for rank in ranks))
    if speed := sum(rank.samples_per_second or 0.0 for rank in ranks):
        yield ("throughput", "samples/s"), speed
    if speeds := [rank.steps_per_second for rank in ranks if rank.steps_per_second]:
        yield ("throughput", "steps/s"), median(speeds)
    if times := [rank.step_seconds * 1e3 for rank in ranks if rank.step_seconds]:
        yield ("step, median of the ranks", "ms"), median(times)
        yield ("step, slowest rank", "ms"), max(times)
    yield from losses(measured, step)
    for name, value in scored.after.items():
        yield (f"{name.upper()} after", ""), float(value)
    if ranks:
        yield ("memory, largest rank", "GiB"), max(rank.peak_rss for rank in ranks) / 2**30


def losses(measured: Measures, step: float | None) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the last loss, and the loss at `step` if there is a common step."""
    if measured.loss:
        yield ("loss, last", ""), measured.loss[-1][1]
    if step is not None:
        yield (f"loss at step {step:g}", ""), dict(measured.loss)[step]


def text(comparison: Comparison) -> str:
    """Return a table of the differing settings and a table of the figures."""
    heads = [f"a: {comparison.a} ({comparison.states[0]})"]
    heads += [f"b: {comparison.b} ({comparison.states[1]})"]
    differences = [{"setting": entry.name, "a": entry.a, "b": entry.b} for entry in comparison.differences]
    settings_table = table(differences, ("setting", "a", "b")) if differences else "no setting differs"
    rows = [
        {
            "figure": f"{entry.name}, {entry.unit}" if entry.unit else entry.name,
            "a": shown(entry.a),
            "b": shown(entry.b),
            "b/a": "-" if entry.ratio is None else f"{entry.ratio:.3f}",
        }
        for entry in comparison.figures
    ]
    return "\n".join([*heads, "", settings_table, "", table(rows, ("figure", "a", "b", "b/a"))])


def shown(value: float | None) -> str:
    """Return a value with five significant digits, or `-` if it is missing."""
    return "-" if value is None else f"{value:.5g}"


def as_json(comparison: Comparison) -> str:
    """Return the comparison as JSON."""
    return json.dumps({"schema": SCHEMA, "kind": "comparison", **asdict(comparison)}, indent=1)
