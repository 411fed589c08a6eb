"""Charts and tables -> one HTML file, which can be mailed, and asks nothing of a network.

The plotting library stands in it, a script of a known hash. The page's own policy lets a browser
run that script and the short one that feeds it, by their hashes, and nothing else: whatever a node
has sent stays text. The charts are data (JSON) beside them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.report.traces import Chart

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
PLOTLY = Path(__file__).resolve().parent / "plotly" / "plotly-basic.min.js"
DIGITS = 7  # of a number: more than a screen shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[str, ...]
    css: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """One that the page runs. `source`: its name in a Content-Security-Policy."""

    text: Markup
    source: str


@cache
def script(path: Path) -> Script:
    text = path.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text=Markup(text), source=f"'sha256-{digest}'")  # nosec B704: files of ours


def render(template: str, charts: Sequence[Chart], **values: object) -> str:
    """The page of a template. `values`: what it shows beside the charts."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        scripts=[script(PLOTLY), script(TEMPLATES / "charts.js")],
        charts=charts,
        data=embedded([asdict(chart) for chart in charts]),
        **values,
    )


def finite(value: object) -> object:
    """Floats in DIGITS digits; without NaN and infinity, which JSON has not: a chart has a gap."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value


def embedded(value: object) -> Markup:
    """JSON that no text in it can end, wherever it stands in a page."""
    text = json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # nosec B704: no sign of HTML is left
