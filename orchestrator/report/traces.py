"""The elements of a chart in plotly's format; templates/charts.js adds what all charts share.

A colour is the name of one of the page's CSS variables (`--c1`), which the browser resolves in the
light or the dark scheme. Text from nodes must go through `plain`, because plotly interprets `<b>` and `&lt;`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Trace = Mapping[str, object]
Points = Sequence[tuple[float, float]]
HOVER = 300  # maximum number of characters of a hover text
MAX_POINTS = 1000  # maximum number of points of a line
COLOURS = 8  # number of colours of the page, --c1 to --c8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of a page.

    Attributes:
        title: the title above the chart.
        data: the traces in plotly's format.
        layout: the layout in plotly's format.
        note: a sentence below the title, or "".
        height: the height in pixels.
    """

    title: str
    data: tuple[Trace, ...]
    layout: Mapping[str, object]
    note: str = ""
    height: int = 320


def plain(text: str) -> str:
    """Return the text with the characters escaped that plotly interprets."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def hover(text: str) -> str:
    """Return the beginning of a text, wrapped so that a hover box fits a narrow screen."""
    return "<br>".join(plain(line) for line in textwrap.wrap(text[:HOVER], 48))


def colour(index: int) -> str:
    """Return the colour of the series with this index."""
    return f"--c{index % COLOURS + 1}"


def line(name: str, points: Points, colour: str, *, width: float = 2) -> Trace:
    """Return a line through the points.

    Args:
        name: the name in the legend.
        points: the points of the line.
        colour: the name of a CSS variable.
        width: the width in pixels.
    """
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": plain(name),
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour, "width": width},
        "marker": {"color": colour},
    }


def axis(title: str = "", **more: object) -> Mapping[str, object]:
    """Return an axis with a title and further options of plotly."""
    return {"title": {"text": plain(title)}, **more}


def thin(points: Points) -> Points:
    """Return at most MAX_POINTS points, each the mean of neighbouring points."""
    size = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [points[index : index + size] for index in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a duration: its length in seconds and its name."""
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")
