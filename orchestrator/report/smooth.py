"""Smooth lines and their spread from many noisy samples, and readable units of time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 120  # maximum number of points of a smooth line
MOST = 1000  # maximum number of points of a line that is drawn as reported
SAMPLES = 5  # minimum number of samples in a window, if there are enough
LOW, HIGH = 0.1, 0.9  # shares of a window's samples below the ends of its spread

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The mean and the spread of the samples around a position.

    Attributes:
        at: the position on the x axis.
        mean: the mean of the samples.
        low: the 10th percentile.
        high: the 90th percentile.
    """

    time: float
    mean: float
    low: float
    high: float


def grid(positions: Sequence[float]) -> tuple[float, ...]:
    """Return at most POINTS evenly spaced positions from the smallest to the largest of `positions`."""
    if not positions:
        return ()
    first, last = min(positions), max(positions)
    count = min(POINTS, len(set(positions)))
    if count < 2 or last <= first:
        return (first,)
    return tuple(first + (last - first) * index / (count - 1) for index in range(count))


def reach(points: Points) -> float:
    """Return how far a window extends to each side: SAMPLES samples, at least 1/60 of the line."""
    if len(points) < 2:
        return math.inf
    length = points[-1][0] - points[0][0]
    return max(SAMPLES / 2 * length / (len(points) - 1), length / (POINTS / 2))


def smooth(points: Points, positions: Sequence[float]) -> list[Window]:
    """Return a window around each position that has samples near it.

    Args:
        points: the samples, in ascending order of position.
        positions: the centres of the windows.
    """
    windows = []
    xs = [x for x, _ in points]
    width = reach(points)
    for position in positions:
        near = points[bisect_left(xs, position - width) : bisect_right(xs, position + width)]
        if near:
            values = sorted(y for _, y in near)
            windows.append(
                Window(time=position, mean=sum(values) / len(values), low=share(values, LOW), high=share(values, HIGH))
            )
    return windows


def thin(points: Points) -> list[tuple[float, float]]:
    """Return at most MOST points, each the mean of neighbouring points."""
    size = math.ceil(len(points) / MOST) or 1
    parts = [points[index : index + size] for index in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def share(ordered: Sequence[float], part: float) -> float:
    """Return the value below which the share `part` of the ordered values lies, by linear interpolation."""
    position = part * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a duration: its length in seconds and its name."""
    if seconds < 1.0:
        return 1e-3, "ms"
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")
