"""Render charts and tables as one HTML file that can be mailed and needs no network.

The plotting library is embedded in the file as a script with a known hash. The page's content
security policy allows a browser to run that script and the short one that feeds it, by their
hashes, and nothing else, so that whatever a node sent stays text. The charts are embedded as JSON.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from orchestrator.report.charts import Chart
from orchestrator.report.listing import finite

PLOTLY = Path(__file__).resolve().parent / "plotly" / "plotly-basic.min.js"
CHARTS_SCRIPT = PLOTLY.parents[2] / "templates" / "charts.js"
DIGITS = 7  # significant digits of a number, more than a screen can show


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a page."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    head: tuple[str, ...] = ()
    hot: tuple[int, ...] = ()  # the numbers of highlighted rows


@dataclass(frozen=True, slots=True)
class Script:
    """A script that the page runs.

    Attributes:
        text: the source code.
        source: the hash by which the content security policy allows it.
    """

    text: Markup
    source: str


@cache
def script(path: Path) -> Script:
    """Return the script in a file, with the hash of its text."""
    text = path.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text=Markup(text), source=f"'sha256-{digest}'")  # noqa: S704  the files belong to this package


def render(template: str, charts: Sequence[Chart], **values: object) -> str:
    """Return the page that a template describes.

    Args:
        template: the file name of the template.
        charts: the charts of the page.
        values: the other values that the template shows.
    """
    loader = PackageLoader("orchestrator")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template(template).render(
        scripts=[script(PLOTLY), script(CHARTS_SCRIPT)],
        charts=charts,
        data=embedded([asdict(chart) for chart in charts]),
        **values,
    )


def embedded(value: object) -> Markup:
    """Return the value as JSON that no text in it can end, wherever it is embedded in a page."""
    return htmlsafe_json_dumps(finite(value, DIGITS), separators=(",", ":"), allow_nan=False)
