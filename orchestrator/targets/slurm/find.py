"""Runs that Slurm knows as jobs of this user, and those recorded here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.planning.request import RUNS_DIR
from orchestrator.runs import store
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.runs.rows import progress_words, row_of
from orchestrator.runs.store import Run
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import Listed, Tell
from orchestrator.targets.slurm import states
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.scheduler import Scheduler
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


def list_runs(where: str) -> Listed:
    """Runs that are recorded in the folder of runs here, as Slurm knows them now; and jobs of this
    user that are recorded elsewhere, in words."""
    try:
        jobs = Scheduler(Local()).named(PREFIX)
    except ExecuteError as error:
        return Listed(rows=(), silent=(f"Slurm: {error.message}",))
    rows = []
    for run in recorded(Path(RUNS_DIR).absolute()):
        job = jobs.pop(location_of(run.record).name, None)
        progress = progress_words(run.progress())
        words = states.waiting_words(job) if job and job.waits else progress
        rows.append(
            row_of(
                run.record,
                state=state_of(run, job),
                nodes=(one.node for one in run.record.nodes),
                progress=words,
                folder=str(run.folder),
            )
        )
    elsewhere = [f"job {job.job} ({name}, {job.state}) is recorded in another folder"
                 for name, job in jobs.items() if not job.ended]  # fmt: skip
    return Listed(rows=tuple(rows), warnings=tuple(elsewhere))


def state_of(run: Run, job: JobState | None) -> str:
    if job is not None and job.waits:  # also one that was put back
        return "waiting"
    if run.outcome is not None:
        return run.outcome.state
    return "killed" if job is None or job.ended else "running"


def clean(base: Path, *, look: bool) -> CleanupReport:
    """Jobs whose runs have ended, and which Slurm still has: they are cancelled."""
    scheduler = Scheduler(Local())
    jobs = scheduler.named(PREFIX)
    ended = {location_of(run.record).name for run in recorded(base) if run.outcome is not None}
    left = [job for name, job in jobs.items() if name in ended and not job.ended]
    for job in left if not look else ():
        scheduler.cancel(job.job)
    nodes = tuple(
        NodeCleanup(
            node=f"job {job.job}", state="left" if look else "clean", segments=(), problem="",
            ended=() if look else (job.state,), left=(job.state,) if look else (),
        )
        for job in left
    )  # fmt: skip
    return CleanupReport(run_id="", seconds=0.0, nodes=nodes)
