"""The figures that a script has reported at its end, as far as reports know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orch_node.protocol.events import Result

LONGEST_UNIT = 20  # letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """`before` and `after` the training: name -> value, as the recipe's own metrics name them;
    `units`: name -> unit, as far as the script has told."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    train_samples_per_second: float | None
    train_seconds: float | None
    units: Mapping[str, str]


def scores(result: Result | None) -> Scores:
    told = result.figures if result else {}
    return Scores(
        before=numbers(told.get("before")),
        after=numbers(told.get("after")),
        train_samples_per_second=number(told.get("train_samples_per_second")),
        train_seconds=number(told.get("train_seconds")),
        units=texts(told.get("units")),
    )


def numbers(value: Any) -> dict[str, float]:
    """What is no number in it is none of its figures."""
    told = value.items() if isinstance(value, Mapping) else ()
    return {name: one for name, found in told if (one := number(found)) is not None}


def texts(value: Any) -> dict[str, str]:
    told = value.items() if isinstance(value, Mapping) else ()
    return {name: one for name, one in told if isinstance(one, str) and len(one) <= LONGEST_UNIT}


def number(value: Any) -> float | None:
    """NaN is a figure, too: it says that the training has failed."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
