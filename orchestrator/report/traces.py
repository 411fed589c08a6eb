"""The elements of a chart in plotly's format; templates/charts.js adds what all charts share.

A colour is the name of one of the page's CSS variables (`--c1`), which the browser resolves in the
light or the dark scheme. Text from nodes must go through `plain`, because plotly interprets `<b>` and `&lt;`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.report.smooth import Window

Trace = Mapping[str, object]
HOVER = 300  # maximum number of characters of a hover text
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


def line(
    name: str,
    points: Sequence[tuple[float, float]],
    colour: str,
    *,
    width: float = 2,
    legend: bool = True,
    hidden: bool = False,
    dash: str = "solid",
    axis: str = "y",
    group: str = "",
) -> Trace:
    """Return a line through the points.

    Args:
        name: the name in the legend.
        points: the points of the line.
        colour: the name of a CSS variable.
        width: the width in pixels.
        legend: whether the legend shows the line.
        hidden: whether the line is hidden until it is clicked in the legend.
        dash: plotly's name of the dash style.
        axis: plotly's name of the y axis.
        group: a name shared by the traces that are toggled together; by default the line's name.
    """
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": plain(name),
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "yaxis": axis,
        "line": {"color": colour, "width": width, "dash": dash},
        "marker": {"color": colour},
        "showlegend": legend,
        "legendgroup": plain(group or name),
        "visible": "legendonly" if hidden else True,
    }


def band(name: str, windows: Sequence[Window], colour: str, *, axis: str = "y", legend: bool = True) -> Trace:
    """Return the spread around a line as an area."""
    up = [(window.time, window.high) for window in windows]
    down = [(window.time, window.low) for window in reversed(windows)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "yaxis": axis,
        "x": [x for x, _ in (*up, *down)],
        "y": [y for _, y in (*up, *down)],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"color": colour, "width": 0},
        "opacity": 0.22,
        "hoverinfo": "skip",
        "showlegend": legend,
        "legendgroup": plain(name),
    }


def middle(windows: Sequence[Window]) -> list[tuple[float, float]]:
    """Return the means of the windows as points."""
    return [(window.time, window.mean) for window in windows]


def axis(title: str = "", **more: object) -> Mapping[str, object]:
    """Return an axis with a title and further options of plotly."""
    return {"title": {"text": plain(title)}, **more}


def label(text: str, top: float) -> Mapping[str, object]:
    """Return a label above the part of a chart that ends at `top`, a share of its height."""
    return {
        "text": plain(text),
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }
