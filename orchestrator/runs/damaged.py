"""Runs that cannot be read: named, left out, and moved out of the way by `orch clean`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orch_node import supervisor_state

from orchestrator.errors import ExecuteError
from orchestrator.files import make_user_folder, sync_folder
from orchestrator.runs.state_files import PLAN, supervises

ASIDE = "damaged"  # the folder beside those of the runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A run whose plan.json cannot be read."""

    folder: Path
    problem: str

    def describe(self) -> str:
        return (
            f"{self.folder / PLAN} is damaged, the run is left out: {self.problem} "
            f"(`orch clean` moves its folder to {self.folder.parent / ASIDE})"
        )


def lives(folder: Path) -> bool:
    """Return whether a process here is of the run, or its supervisor may live on another host."""
    if supervisor_state.may_run_elsewhere(folder) is not None:
        return True
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return any(supervises(pid, folder) for pid in pids)


def set_aside(damaged: Damaged) -> Path | None:
    """Move the folder out of the way; -> where it is now, None where something of it lives.

    It may hold checkpoints: nothing is deleted. Raises ExecuteError.
    """
    folder = damaged.folder
    if lives(folder):
        return None
    aside = folder.parent / ASIDE
    numbers = ("", *(f".{number}" for number in range(1, 1000)))
    try:
        make_user_folder(aside)
        names = (aside / f"{folder.name}{number}" for number in numbers)
        target = next(path for path in names if not path.exists())
        folder.rename(target)
        sync_folder(aside)
        return target
    except OSError as error:
        raise ExecuteError(
            f"{folder} cannot be moved: {error.strerror}.",
            hint=f"Whoever may write {folder.parent} can move or delete it.",
        ) from None
