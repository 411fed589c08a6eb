"""What a chart is made of, in plotly's words; templates/charts.js adds what all share. Pure.

A colour is the name of one of the page's (`--c1`): the browser looks it up, in the light or the
dark scheme. Text from nodes goes through `plain`: plotly takes `<b>` and `&lt;` for more than text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.report.smooth import Window

Trace = Mapping[str, object]
HOVER = 300  # characters
COLOURS = 8  # that the page has: --c1 to --c8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`data`, `layout`: of plotly; `height`: pixels."""

    title: str
    data: tuple[Trace, ...]
    layout: Mapping[str, object]
    note: str = ""
    height: int = 320


def plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def hover(text: str) -> str:
    """What a pointer shows: the beginning, in lines that a narrow screen has room for."""
    return "<br>".join(plain(line) for line in textwrap.wrap(text[:HOVER], 48))


def colour(index: int) -> str:
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
    """`hidden`: until it is clicked in the legend; `group`: what is toggled together."""
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
    """The spread around a line, as an area."""
    up = [(one.at, one.high) for one in windows]
    down = [(one.at, one.low) for one in reversed(windows)]
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
    return [(one.at, one.mean) for one in windows]


def axis(title: str = "", **more: object) -> Mapping[str, object]:
    return {"title": {"text": plain(title)}, **more}


def label(text: str, top: float) -> Mapping[str, object]:
    """A line of text above the part of a chart that ends at `top`, a share of its height."""
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
