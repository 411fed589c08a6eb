"""Runs that Slurm knows as jobs of this user, and those recorded here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol.outcome import PREEMPTED
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.planning.request import RUNS_DIR
from orchestrator.runs import store
from orchestrator.runs.cleanup import CleanupReport, NodeCleanup
from orchestrator.runs.outcome import precision_of
from orchestrator.runs.rows import RunRow, progress_words, row_of
from orchestrator.runs.store import Run
from orchestrator.targets.interface import Listed, Tell, silent
from orchestrator.targets.slurm import states
from orchestrator.targets.slurm.load import slurm_settings
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.login import host_at, scheduler_at
from orchestrator.targets.slurm.run_folder import run_folder_of
from orchestrator.targets.slurm.scheduler import AWAY
from orchestrator.targets.slurm.states import JobState

PREFIX = "orch-"
ENDING_SECONDS = 60.0  # for a job to end after its outcome, or to go back into the queue
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
    clusters = dict.fromkeys([(asked, ""), *(key for run in found if any(key := followed_at(run)))])
    by_cluster = {cluster: Looked(*cluster) for cluster in clusters}
    rows = [row(run, by_cluster.get(cluster_of(run))) for run in found]
    elsewhere = [
        f"job {job.job} ({name}, {job.state}) is recorded in another folder"
        for name, job in by_cluster[asked, ""].jobs.items()
        if not job.ended
    ]
    silent = tuple(looked.problem for looked in by_cluster.values() if looked.problem)
    return Listed(rows=tuple(rows), silent=silent, warnings=tuple(elsewhere))


def cluster_of(run: Run) -> tuple[str, str]:
    """Return the login node and the cluster that a run is at; '' for those of this host."""
    location = location_of(run.record)
    return location.login, location.cluster


def followed_at(run: Run) -> tuple[str, str]:
    """Return where more is known of a run, as cluster_of(); empty if nothing more is."""
    may_go_on = run.outcome is None or run.outcome.state == PREEMPTED
    return cluster_of(run) if may_go_on else ("", "")


class Looked:
    """What the Slurm of one host says of this user's jobs; `problem`: why it says nothing."""

    def __init__(self, login: str, cluster: str = "") -> None:
        self.host = host_at(login)
        self.scheduler = scheduler_at(self.host, cluster)
        self.problem = ""
        self.jobs: dict[str, JobState] = {}
        try:
            self.jobs = self.scheduler.named(PREFIX)
        except ExecuteError as error:
            self.problem = f"Slurm: {error.message}"

    def job_of(self, run: Run) -> JobState | None:
        """Return the job of a run, or its step in an allocation while it may run."""
        location = location_of(run.record)
        if "." not in location.job:
            return self.jobs.get(location.name)
        try:
            return None if run.outcome else self.scheduler.state(location.job)
        except ExecuteError as error:
            self.problem = f"Slurm: {error.message}"
            return None

    def renewed(self, run: Run) -> Run:
        """As its files are now."""
        job = self.job_of(run)
        if self.problem or (run.outcome is not None and (job is None or job.ended)):
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
    job = looked.job_of(run) if looked else None
    if looked:
        looked.jobs.pop(location_of(run.record).name, None)
    state = run.state if looked is None or looked.problem else state_of(run, job)
    words = progress_words(run.progress())
    if job is not None and job.waits:
        words = states.waiting_words(job)
    elif job is not None and job.suspended:
        words = states.suspended_message(job.job)
    return row_of(
        run.record,
        state=state,
        nodes=(one.node for one in run.record.nodes),
        progress=words,
        folder=str(run.folder),
        precision=precision_of(run),
    )


def state_of(run: Run, job: JobState | None) -> str:
    if job is not None and job.waits:  # also one that was put back
        return "waiting"
    if run.outcome is not None:
        return run.outcome.state
    return "killed" if job is None or job.ended else "running"


def is_leftover(run: Run, job: JobState) -> bool:
    """Return whether a job holds nodes although its run has ended.

    A job that waits resumes later, and one that has just written its outcome is about to end.
    """
    if run.outcome is None or job.ended or state_of(run, job) == "waiting":
        return False
    return time.time() - run.outcome.ended > ENDING_SECONDS


def clean_cluster(slurm: Looked, runs: list[Run], *, look: bool) -> list[JobState]:
    """Cancel the leftover jobs of one cluster, unless `look`; return them.

    Raises:
        ExecuteError: if Slurm does not answer.
    """
    if slurm.problem:
        raise ExecuteError(slurm.problem, hint=AWAY)
    pairs = [(slurm.renewed(run), slurm.job_of(run)) for run in runs]
    leftovers = [job for run, job in pairs if job is not None and is_leftover(run, job)]
    for job in leftovers if not look else ():
        slurm.scheduler.cancel(job.job)
    slurm.host.close()
    return leftovers


def clean(where: str | None, base: Path, *, look: bool) -> CleanupReport:
    """Cancel the jobs whose runs have ended and cannot go on, but which Slurm still has.

    Raises:
        ExecuteError: if Slurm does not answer.
    """
    login = login_of(where)
    runs = [run for run in recorded(base) if location_of(run.record).login == login]
    clusters = dict.fromkeys([(login, ""), *map(cluster_of, runs)])
    leftovers: list[JobState] = []
    for cluster in clusters:
        its_runs = [run for run in runs if cluster_of(run) == cluster]
        leftovers += clean_cluster(Looked(*cluster), its_runs, look=look)
    nodes = tuple(
        NodeCleanup(
            node=f"job {job.job}",
            state="left" if look else "clean",
            segments=(),
            problem="",
            ended=() if look else (job.state,),
            left=(job.state,) if look else (),
        )
        for job in leftovers
    )
    return CleanupReport(run_id="", seconds=0.0, nodes=nodes)
