"""The table at the end of a run: its scores, its speed and how it was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from orchestrator.model.printable import one_line
from orchestrator.planning.software import OF_SCRIPT
from orchestrator.runs.measures import Scores, scores
from orchestrator.runs.outcome import Outcome
from orchestrator.screen import capture_console

SCORE_LABELS = {"em": "Exact match", "f1": "F1", "mcc": "MCC", "auc": "AUC"}
# Units by the suffix of a score's name.
UNITS = {"per_second": "/s", "seconds": "s", "percent": "%", "ms": "ms", "mb": "MB", "gb": "GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        name: the label of the figure.
        before: the score before the training, or None for a figure of the run itself.
        after: the score after the training, or the figure of the run.
        unit: the unit, or "".
    """

    name: str
    before: str | None
    after: str
    unit: str = ""


def table_lines(outcome: Outcome) -> list[str]:
    """Return the lines of the table, or no lines if the run is not done."""
    result = outcome.result
    if outcome.state != "done":
        return []
    if result is None:
        return [] if outcome.seconds is None else [f"done in {outcome.seconds:.1f} s"]
    scored = scores(result)
    compares = bool(scored.before)
    table = Table(box=SIMPLE_HEAD, show_header=compares)
    table.add_column("")
    if compares:
        table.add_column("Before", justify="right")
    table.add_column("After", justify="right")
    table.add_column("")
    for row in (*score_rows(scored), *run_rows(outcome, scored)):
        before = [row.before or ""] if compares else []
        table.add_row(row.name, *before, row.after, row.unit)
    sheet = capture_console(width=100)
    with sheet.capture() as capture:
        sheet.print(table)
    title = f"done: {one_line(outcome.recipe)}"
    return [title, *(line.rstrip() for line in capture.get().splitlines() if line.strip())]


def score_rows(scored: Scores) -> Iterator[Row]:
    """Yield a row for each score, in the order in which the script reported them."""
    for name in {**scored.after, **scored.before}:
        label, unit = label_and_unit(name, scored.units)
        yield Row(name=label, before=number(scored.before.get(name)), after=number(scored.after.get(name)), unit=unit)


def label_and_unit(name: str, units: Mapping[str, str]) -> tuple[str, str]:
    """Return the label and the unit of a score: `tokens_per_second, int8` becomes `Tokens, int8` in `/s`."""
    score, comma, variant = one_line(name).partition(",")
    stem, unit = (score, units[score]) if score in units else suffixed(score)
    label = SCORE_LABELS.get(stem) or sentence(stem.replace("_", " "))
    return f"{label}{comma}{variant}", one_line(unit)


def suffixed(score: str) -> tuple[str, str]:
    """Return a score's name without the suffix that states its unit, and the unit."""
    for end, unit in UNITS.items():
        if score.endswith(f"_{end}"):
            return score.removesuffix(f"_{end}"), unit
    return score, ""


def sentence(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def run_rows(outcome: Outcome, scored: Scores) -> Iterator[Row]:
    """Yield the rows about the speed of the run and how it was run."""
    measured = (
        ("Mean speed", scored.train_samples_per_second, "samples/s"),
        ("Training time", scored.train_seconds, "s"),
        ("Whole run", outcome.seconds, "s"),
    )
    for name, value, unit in measured:
        if value is not None:
            yield Row(name=name, before=None, after=f"{value:.1f}", unit=unit)
    ranks = of_planned(str(outcome.ranks), outcome.ranks, outcome.planned_ranks)
    yield Row(name="Ranks", before=None, after=ranks)
    if outcome.precision != OF_SCRIPT:
        yield Row(name="Precision", before=None, after=one_line(outcome.precision))
    yield Row(name="Backend", before=None, after=one_line(outcome.backend))


def of_planned(text: str, count: int, planned: int) -> str:
    """Return the text with the planned number added if nodes were lost."""
    return text if count == planned else f"{text} of {planned} planned"
