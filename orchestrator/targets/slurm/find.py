"""Runs that Slurm knows as jobs of this user, and those recorded here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.planning.request import RUNS_DIR
from orchestrator.runs import store
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.runs.rows import RunRow, progress_words, row_of
from orchestrator.runs.store import Run
from orchestrator.targets.interface import Listed, Tell, silent
from orchestrator.targets.slurm import states
from orchestrator.targets.slurm.load import slurm_settings
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.login import host_at, scheduler_at
from orchestrator.targets.slurm.run_folder import run_folder_of
from orchestrator.targets.slurm.states import JobState

PREFIX = "orch-"
TARGET = "slurm"


def find(base: Path, name: str, where: str, tell: Tell) -> tuple[RunRecord, Path]:
    """A run by its id, or `last`; -> its record, and its folder. Raises RequestError."""
    runs = {run.id: run for run in recorded(base)}
    wanted = list(runs)[-1] if name == "last" and runs else name
    if wanted not in runs:
        raise RequestError(
            f"There is no run '{name}' on Slurm in {base}.",
            hint="Its folder is where it was started from: --runs-dir names it.",
        )
    return runs[wanted].record, runs[wanted].folder


def recorded(base: Path) -> Iterator[Run]:
    return (run for run in store.recorded(base).runs if run.record.target == TARGET)


def login_of(where: str | None) -> str:
    """The host with Slurm's programs: of `slurm:HOST`, else as orch-slurm.toml says it; empty for
    this one. Raises RequestError."""
    host = (where or "").partition(":")[2]
    named = os.environ.get("ORCH_SLURM_FILE")
    settings = slurm_settings(Path(named) if named else None, (f"login={host}",) if host else ())
    settings.check()
    return settings.login or ""


def list_runs(where: str) -> Listed:
    """Runs that are recorded in the folder of runs here, as Slurm knows them now; and jobs of this
    user that are recorded elsewhere, in words."""
    found = list(recorded(Path(RUNS_DIR).absolute()))
    asked = login_of(where)
    logins = dict.fromkeys([asked, *(login for run in found if (login := followed_at(run)))])
    seen = {login: Looked(login) for login in logins}
    rows = [row(run, seen.get(location_of(run.record).login)) for run in found]
    elsewhere = [f"job {job.job} ({name}, {job.state}) is recorded in another folder"
                 for name, job in seen[asked].jobs.items() if not job.ended]  # fmt: skip
    silent = tuple(one.problem for one in seen.values() if one.problem)
    return Listed(rows=tuple(rows), silent=silent, warnings=tuple(elsewhere))


def followed_at(run: Run) -> str:
    """The login node that knows more of it; empty where none does."""
    return location_of(run.record).login if run.outcome is None else ""


class Looked:
    """What the Slurm of one host says of this user's jobs; `problem`: why it says nothing."""

    def __init__(self, login: str) -> None:
        self.host = host_at(login)
        self.problem = ""
        self.jobs: dict[str, JobState] = {}
        try:
            self.jobs = scheduler_at(self.host).named(PREFIX)
        except ExecuteError as error:
            self.problem = f"Slurm: {error.message}"

    def renewed(self, run: Run) -> Run:
        """As its files are now."""
        if self.problem or run.outcome is not None:
            return run
        try:
            run_folder_of(run.record, run.folder, self.host, silent).refresh()
        except ExecuteError as error:
            self.problem = error.message
            return run
        return store.load(run.folder)


def row(run: Run, looked: Looked | None) -> RunRow:
    """`looked`: at the host that knows it, unless it need not be asked."""
    run = looked.renewed(run) if looked else run
    job = looked.jobs.pop(location_of(run.record).name, None) if looked else None
    state = run.state if looked is None or looked.problem else state_of(run, job)
    words = states.waiting_words(job) if job and job.waits else progress_words(run.progress())
    return row_of(
        run.record,
        state=state,
        nodes=(one.node for one in run.record.nodes),
        progress=words,
        folder=str(run.folder),
    )


def state_of(run: Run, job: JobState | None) -> str:
    if job is not None and job.waits:  # also one that was put back
        return "waiting"
    if run.outcome is not None:
        return run.outcome.state
    return "killed" if job is None or job.ended else "running"


def clean(where: str | None, base: Path, *, look: bool) -> CleanupReport:
    """Jobs whose runs have ended, and which Slurm still has: they are cancelled."""
    login = login_of(where)
    host = host_at(login)
    scheduler = scheduler_at(host)
    jobs = scheduler.named(PREFIX)
    places = [location_of(run.record) for run in recorded(base) if run.outcome is not None]
    ended = {one.name for one in places if one.login == login}
    left = [job for name, job in jobs.items() if name in ended and not job.ended]
    for job in left if not look else ():
        scheduler.cancel(job.job)
    host.close()
    nodes = tuple(
        NodeCleanup(
            node=f"job {job.job}", state="left" if look else "clean", segments=(), problem="",
            ended=() if look else (job.state,), left=(job.state,) if look else (),
        )
        for job in left
    )  # fmt: skip
    return CleanupReport(run_id="", seconds=0.0, nodes=nodes)
