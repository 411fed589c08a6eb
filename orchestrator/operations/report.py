"""`orch report`: a run, or several beside each other, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.operations.find import renewed
from orchestrator.report import page, several
from orchestrator.report.comparison import Side
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.interface import Tell


def report(base: Path, names: Sequence[str], *, inventory: str | None, output: Path | None, tell: Tell) -> Path:
    """Write the page; -> its path. By default it goes into the run's folder, or, of several, into
    that of all runs. Raises OrchError."""
    found = [renewed(base, name, inventory, tell) for name in names]
    sides = [Side(run=run, outcome=outcome_of(run), measured=measures(run)) for run in found]
    if len(sides) == 1:
        (one,) = sides
        target = output or one.run.folder / "report.html"
        return written(target, page.render(one.run, one.outcome, one.measured))
    return written(output or base / "comparison.html", several.render(sides))


def written(target: Path, text: str) -> Path:
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ExecuteError(
            f"{target} cannot be written: {error.strerror}.", hint="--output names another file."
        ) from None
    return target.absolute()
