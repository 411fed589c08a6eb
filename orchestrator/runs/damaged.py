"""Runs that cannot be read: they are named, skipped, and moved away by `orch clean`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orch_node import supervisor_state

from orchestrator.errors import ExecuteError
from orchestrator.files import make_user_folder, sync_folder
from orchestrator.runs.state_files import PLAN, supervises

QUARANTINE = "damaged"  # the folder for damaged runs, next to the folders of the runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A run whose plan.json cannot be read."""

    folder: Path
    problem: str

    def describe(self) -> str:
        """Return a message that names the damaged file with a hint."""
        return (
            f"{self.folder / PLAN} is damaged, the run is left out: {self.problem} "
            f"(`orch clean` moves its folder to {self.folder.parent / QUARANTINE})"
        )


def may_be_running(folder: Path) -> bool:
    """Return whether a process of the run is running here, or its supervisor may be running on another host."""
    if supervisor_state.may_run_elsewhere(folder) is not None:
        return True
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return any(supervises(pid, folder) for pid in pids)


def quarantine(damaged: Damaged) -> Path | None:
    """Move the folder of a damaged run away without deleting anything, since it may hold checkpoints.

    Returns:
        The new path of the folder, or None if a process of the run may still be running.

    Raises:
        ExecuteError: if the folder cannot be moved.
    """
    folder = damaged.folder
    if may_be_running(folder):
        return None
    damaged_folder = folder.parent / QUARANTINE
    numbers = ("", *(f".{number}" for number in range(1, 1000)))
    try:
        make_user_folder(damaged_folder)
        names = (damaged_folder / f"{folder.name}{number}" for number in numbers)
        target = next(path for path in names if not path.exists())
        folder.rename(target)
        sync_folder(damaged_folder)
        return target
    except OSError as error:
        raise ExecuteError(
            f"{folder} cannot be moved: {error.strerror}.",
            hint=f"Whoever may write {folder.parent} can move or delete it.",
        ) from None
