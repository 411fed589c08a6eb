"""The report of one run as an HTML page that can be mailed and needs no network.

The plotting library is embedded in the file as a script with a known hash. The page's content
security policy allows a browser to run that script and the short one that feeds it, by their
hashes, and nothing else, so that whatever a node sent stays text. The charts are embedded as JSON.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from orch_node import atomic_write

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import counted
from orchestrator.report import charts
from orchestrator.report.comparison import ABSENT, figures, settings
from orchestrator.report.listing import cell, finite, number_text
from orchestrator.report.training import failure_lines, of_planned
from orchestrator.runs import timeline
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import RunOutcome, outcome_of
from orchestrator.runs.store import Run

MAX_MOMENTS = 200  # of the timeline
PLOTLY = Path(__file__).resolve().parent / "plotly" / "plotly-basic.min.js"
CHARTS_SCRIPT = PLOTLY.parents[2] / "templates" / "charts.js"
DIGITS = 7  # significant digits of a number, more than a screen can show


@cache
def script(path: Path) -> Mapping[str, str]:
    """Return the script in a file, and the hash of its text by which the content security policy allows it."""
    text = path.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "source": f"'sha256-{digest}'"}  # noqa: S704  the files belong to this package


def write(run: Run, target: Path | None = None) -> Path:
    """Write the page of a run to a file, by default in the run's folder, and return its path.

    Raises:
        ExecuteError: if the file cannot be written.
    """
    return write_page(target or run.folder / "report.html", run_page(run))


def write_page(target: Path, text: str) -> Path:
    """Write a page as a whole, or directly to a pipe or a device, and return its path.

    Raises:
        ExecuteError: if the file cannot be written.
    """
    content = text.encode(errors="backslashreplace")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            atomic_write.write(target.resolve(), content, mode=0o666)  # before the umask
    except OSError as error:
        raise ExecuteError(f"Cannot write {target}: {error.strerror}.", hint="Choose another file.") from None
    return target.absolute()


def render(template: str, drawn: Iterable[charts.Chart | None], **values: object) -> str:
    """Return the page that a template describes.

    Args:
        template: the file name of the template.
        drawn: the charts of the page.
        values: the other values that the template shows.
    """
    loader = PackageLoader("orchestrator")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["cell"] = cell
    shown = [chart for chart in drawn if chart]
    return environment.get_template(template).render(
        scripts=[script(PLOTLY), script(CHARTS_SCRIPT)],
        charts=shown,
        data=embedded([asdict(chart) for chart in shown]),
        **values,
    )


def run_page(run: Run) -> str:
    """Return the report of a run as HTML."""
    outcome, measured = outcome_of(run), measures(run)
    drawn = (
        charts.loss_chart(measured),
        charts.throughput_chart(measured),
        charts.memory_chart(measured),
        charts.memory_chart(measured, "GPU memory that torch holds, GiB", "gpu_bytes"),
        charts.timeline(measured),
    )
    return render(
        "report.html.j2",
        drawn,
        outcome=outcome,
        subtitle=subtitle(run, outcome),
        figures=[
            (", ".join(filter(None, key)), number_text(value, 5)) for key, value in figures(outcome, measured).items()
        ],
        failure="\n".join(failure_lines(outcome, shown="none")) if outcome.state != "done" else "",
        moments=timeline.lines(timeline.timeline_of(measured.events))[:MAX_MOMENTS],
        ranks=measured.ranks,
        slow=charts.slow_ranks(measured.ranks),
        origin=[(name, value) for name, value in settings(run, outcome).items() if value != ABSENT],
        command=run.origin.command.shell() if run.origin.command else "was not recorded",
    )


def embedded(value: object) -> Markup:
    """Return the value as JSON that no text in it can end, wherever it is embedded in a page."""
    return htmlsafe_json_dumps(finite(value, DIGITS), separators=(",", ":"), allow_nan=False)


def subtitle(run: Run, outcome: RunOutcome) -> str:
    """Return the line below the title: start time, ranks and nodes."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.record.created))
    ranks = counted(outcome.ranks, "rank")
    nodes = counted(outcome.ran_on, "node")
    fewer = f" of {len(run.nodes)}" if outcome.ran_on < len(run.nodes) else ""
    return f"started {began} · {of_planned(ranks, outcome.ranks, outcome.planned_ranks)} on {nodes}{fewer}"
