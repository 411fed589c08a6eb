"""`orch runs`: read what runs have left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator import runs
from orchestrator.errors import RequestError
from orchestrator.report.outcome import Outcome, outcome_of


def rows(base: Path) -> list[dict[str, Any]]:
    return [
        {
            "id": run.id,
            "state": run.state,
            "recipe": run.plan["recipe"],
            "ranks": len(run.plan["layout"]),
            "backend": run.plan["backend"],
            "precision": run.plan["precision"],
            "created": run.plan["created"],
            "folder": str(run.folder),
        }
        for run in runs.list_runs(base)
    ]


def outcome(base: Path, name: str) -> Outcome:
    return outcome_of(runs.find(base, name))


def log_lines(base: Path, name: str, rank: int | None) -> Iterator[tuple[int, str]]:
    """(rank, line) of each rank's log, rank by rank. Raises RequestError for an unknown rank."""
    run = runs.find(base, name)
    ranks = range(len(run.plan["layout"])) if rank is None else [rank]
    for number in ranks:
        if not 0 <= number < len(run.plan["layout"]):
            raise RequestError(f"Run {run.id} has ranks 0 to {len(run.plan['layout']) - 1}.")
        path = run.folder / "ranks" / f"rank-{number}.log"
        if path.exists():
            for line in path.read_text(errors="replace").splitlines():
                yield number, line
