"""Reports: one run as an HTML page, two runs or an array compared as a table."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ExecuteError
from orchestrator.operations.runs import find_refreshed
from orchestrator.report import page
from orchestrator.report.comparison import Comparison, Side, compare
from orchestrator.report.ranking import RankedRun, rank_runs
from orchestrator.runs import store
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.interface import Notify, ignore


def report(base: Path, name: str, *, inventory: str | None, output: Path | None, notify: Notify) -> Path:
    """Write the HTML page of a run and return its path.

    Args:
        base: the folder of all run folders.
        name: the ID of the run.
        inventory: query the hosts of this inventory.
        output: the file to write. Default: in the run's folder.
        notify: receives warnings.

    Raises:
        OrchError: if the run cannot be found or the page cannot be written.
    """
    side = side_of(find_refreshed(base, name, inventory, notify))
    return write_page(output or side.run.folder / "report.html", page.render(side.run, side.outcome, side.measured))


def write_page(target: Path, text: str) -> Path:
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ExecuteError(
            f"Cannot write {target}: {error.strerror}.", hint="Choose another file with --output."
        ) from None
    return target.absolute()


def comparison(base: Path, a: str, b: str, notify: Notify = ignore) -> Comparison:
    """Compare two recorded runs.

    Raises:
        RequestError: if a run does not exist.
    """
    return compare(side_of(store.find(base, a, notify)), side_of(store.find(base, b, ignore)))


def ranking(base: Path, array: str, result: str | None) -> tuple[RankedRun, ...]:
    """Return the runs of an array, ranked by a result; nothing if there is no such array.

    Raises:
        RequestError: if no run of the array has this result.
    """
    members = store.members(base, array)
    return rank_runs([side_of(run) for run in members], result) if members else ()


def side_of(run: store.Run) -> Side:
    return Side(run=run, outcome=outcome_of(run), measured=measures(run))
