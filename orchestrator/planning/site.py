"""The identity and the folders of a run, in the same form for every target."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planning.request import Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A new run, or the next attempt of a run. All folders are absolute paths.

    Attributes:
        run_id: the id of the run.
        run_dir: the run's folder on its nodes.
        train: the `train` folder on its nodes.
        train_here: the `train` folder on this machine.
        store: the folder of what controllers have sent to the nodes, by the hash of the content; '' without one.
        started_by: the user and host that planned the run, as `user@host`.
        created: when the run was planned, in seconds since the epoch.
        root: orch's folder on other machines; '' if the ranks see the folders of this machine.
        resume: the run whose next attempt is planned, or None for a new run.
    """

    run_id: str
    run_dir: str
    train: str
    train_here: str
    started_by: str
    created: float
    store: str = ""
    root: str = ""
    resume: Resume | None = None

    @property
    def attempt(self) -> int:
        """Return the number of the next attempt."""
        return self.resume.attempt if self.resume else 1
