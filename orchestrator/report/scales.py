"""From values to places on paper: scales, round tick marks, units. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TICKS = 5
FINEST = 1e-9  # share of a value: smaller differences would be those of rounding
POINTS = 300  # of a line: more than a screen shows are averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high`, drawn from pixel `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """(pixel, text) of round values; a line as long as a page's width has room for more."""
        many = TICKS if abs(self.end - self.start) < 400 else 2 * TICKS
        values = tuple(round_values(self.low, self.high, many))
        return tuple((self.at(value), short(value)) for value in values)


def scale(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """A scale that all values fit on, its ends on round values; `zero`: it begins at 0."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if zero else low
    if high - low <= abs(low) * FINEST:
        high = low + (abs(low) or 1.0) * 0.1
    step = round_step(low, high)
    return Scale(
        low=math.floor(low / step) * step, high=math.ceil(high / step) * step, start=start, end=end
    )


def exact(low: float, high: float, start: float, end: float) -> Scale:
    """A scale that ends where the values end: for time and steps."""
    return Scale(low=low, high=high if high > low else low + 1.0, start=start, end=end)


def round_step(low: float, high: float, many: int = TICKS) -> float:
    """1, 2 or 5 times a power of ten, for at most about so many steps."""
    rough = (high - low) / many
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if rough <= factor * power * 1.0001)


def round_values(low: float, high: float, many: int) -> Iterator[float]:
    step = round_step(low, high, many)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    yield from (number * step for number in range(first, last + 1))


def short(value: float) -> str:
    """1500000 -> 1.5M, 0.30000000000000004 -> 0.3."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds of a unit, its name) that suits a duration."""
    if seconds < 1.0:
        return 1e-3, "ms"
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS points, each the mean of its neighbours."""
    size = math.ceil(len(points) / POINTS) or 1
    parts = [points[index : index + size] for index in range(0, len(points), size)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]
