"""Many noisy samples -> a smooth line and its spread, and units for people. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 120  # of a smooth line
MOST = 1000  # of a line that is drawn as it was told
SAMPLES = 5  # that a window holds at least, where there are so many
LOW, HIGH = 0.1, 0.9  # the share of a window's samples below the two ends of its spread

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The samples around one place `at`: their mean, and the 10th and 90th percentile."""

    at: float
    mean: float
    low: float
    high: float


def grid(places: Sequence[float]) -> tuple[float, ...]:
    """At most POINTS places, evenly from the first to the last of `places` (in any order)."""
    if not places:
        return ()
    first, last = min(places), max(places)
    many = min(POINTS, len(set(places)))
    if many < 2 or last <= first:
        return (first,)
    return tuple(first + (last - first) * index / (many - 1) for index in range(many))


def reach(points: Points) -> float:
    """How far a window goes to each side: over SAMPLES samples, and 1/60 of the whole."""
    if len(points) < 2:
        return math.inf
    whole = points[-1][0] - points[0][0]
    return max(SAMPLES / 2 * whole / (len(points) - 1), whole / (POINTS / 2))


def smooth(points: Points, places: Sequence[float]) -> list[Window]:
    """A window around each of `places` that has samples near. `points`: by place, ascending."""
    found = []
    xs = [x for x, _ in points]
    width = reach(points)
    for place in places:
        near = points[bisect_left(xs, place - width) : bisect_right(xs, place + width)]
        if near:
            values = sorted(y for _, y in near)
            found.append(
                Window(at=place, mean=sum(values) / len(values), low=share(values, LOW), high=share(values, HIGH))
            )
    return found


def thin(points: Points) -> list[tuple[float, float]]:
    """At most MOST points, each the mean of its neighbours."""
    size = math.ceil(len(points) / MOST) or 1
    parts = [points[index : index + size] for index in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def share(ordered: Sequence[float], part: float) -> float:
    """The value below which `part` of the ordered values lie, between two of them if need be."""
    at = part * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds of a unit, its name) that suits a duration."""
    if seconds < 1.0:
        return 1e-3, "ms"
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")
