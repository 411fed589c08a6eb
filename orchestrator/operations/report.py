"""`orch report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.operations.find import renewed
from orchestrator.report import page
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.interface import Tell


def report(
    base: Path,
    name: str,
    *,
    inventory: str | None,
    output: Path | None,
    tell: Tell,
) -> Path:
    """Write the page, by default into the run's folder; -> its path. Raises OrchError."""
    run = renewed(base, name, inventory, tell)
    target = output or run.folder / "report.html"
    text = page.render(run, outcome_of(run), measures(run))
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ExecuteError(f"{target} cannot be written: {error.strerror}.") from None
    return target.absolute()
