"""The figures that a script has reported at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orch_node.protocol.events import Result

LONGEST_UNIT = 20  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores and the speed that a script has reported.

    Attributes:
        before: the scores before the training, by the name of the metric.
        after: the scores after the training, by the name of the metric.
        train_samples_per_second: the speed of the training, or None.
        train_seconds: the duration of the training, or None.
        units: the units of the scores, by the name of the metric, if the script has reported them.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    train_samples_per_second: float | None
    train_seconds: float | None
    units: Mapping[str, str]


def scores(result: Result | None) -> Scores:
    """Return the scores in a result; without a result all of them are empty."""
    figures = result.figures if result else {}
    return Scores(
        before=numbers(figures.get("before")),
        after=numbers(figures.get("after")),
        train_samples_per_second=number(figures.get("train_samples_per_second")),
        train_seconds=number(figures.get("train_seconds")),
        units=texts(figures.get("units")),
    )


def numbers(value: Any) -> dict[str, float]:
    """Return the items of a mapping whose values are numbers."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: figure for name, item in items if (figure := number(item)) is not None}


def texts(value: Any) -> dict[str, str]:
    """Return the items of a mapping whose values are strings of at most LONGEST_UNIT characters."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: unit for name, unit in items if isinstance(unit, str) and len(unit) <= LONGEST_UNIT}


def number(value: Any) -> float | None:
    """Return the value if it is a number, otherwise None; NaN is kept because it shows a failed training."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
