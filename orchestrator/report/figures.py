"""The table at the end of a run: what it reached, how fast it was, and what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from orchestrator.model.printable import one_line
from orchestrator.planning.precision import OF_SCRIPT
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.result import Scores, scores
from orchestrator.screen import paper

KNOWN = {"em": "Exact match", "f1": "F1", "mcc": "MCC", "auc": "AUC"}
# The end of a name -> the unit that it says.
UNITS = {"per_second": "/s", "seconds": "s", "percent": "%", "ms": "ms", "mb": "MB", "gb": "GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`before` is None where nothing can have been measured before the training."""

    name: str
    before: str | None
    after: str
    unit: str = ""


def table_lines(outcome: Outcome) -> list[str]:
    result = outcome.result
    if outcome.state != "done":
        return []
    if result is None:
        return [] if outcome.seconds is None else [f"done in {outcome.seconds:.1f} s"]
    told = scores(result)
    compares = bool(told.before)
    table = Table(box=SIMPLE_HEAD, show_header=compares)
    table.add_column("")
    if compares:
        table.add_column("Before", justify="right")
    table.add_column("After", justify="right")
    table.add_column("")
    for row in (*score_rows(told), *run_rows(outcome, told)):
        before = [row.before or ""] if compares else []
        table.add_row(row.name, *before, row.after, row.unit)
    sheet = paper(width=100)
    with sheet.capture() as capture:
        sheet.print(table)
    title = f"done: {one_line(outcome.recipe)}"
    return [title, *(line.rstrip() for line in capture.get().splitlines() if line.strip())]


def score_rows(told: Scores) -> Iterator[Row]:
    """Names in the order in which the script gave them."""
    for name in {**told.after, **told.before}:
        label, unit = named(name, told.units)
        yield Row(name=label, before=number(told.before.get(name)), after=number(told.after.get(name)), unit=unit)


def named(name: str, units: Mapping[str, str]) -> tuple[str, str]:
    """A figure's name in words, and its unit: `tokens_per_second, int8` is `Tokens, int8` in /s."""
    score, comma, of = one_line(name).partition(",")
    stem, unit = (score, units[score]) if score in units else suffixed(score)
    words = KNOWN.get(stem) or sentence(stem.replace("_", " "))
    return f"{words}{comma}{of}", one_line(unit)


def suffixed(score: str) -> tuple[str, str]:
    """(the name without its unit, the unit); a name that is all unit keeps it."""
    for end, unit in UNITS.items():
        if score.endswith(f"_{end}"):
            return score.removesuffix(f"_{end}"), unit
    return score, ""


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def run_rows(outcome: Outcome, told: Scores) -> Iterator[Row]:
    """What a recipe reported of its speed, and what the run was."""
    measured = (
        ("Mean speed", told.train_samples_per_second, "samples/s"),
        ("Training time", told.train_seconds, "s"),
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


def of_planned(words: str, count: int, planned: int) -> str:
    """With the number that was planned, where nodes were lost."""
    return words if count == planned else f"{words} of {planned} planned"
