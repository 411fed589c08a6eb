"""Find the runs recorded on this machine that are jobs of a batch system, and list the user's other jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from orch_node.agent.run_folders import report_of
from orch_node.protocol.node_reports import Cleaned
from orch_node.protocol.outcome import DONE, PREEMPTED
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError
from orchestrator.planning.request import RUNS_DIR
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, precision_of
from orchestrator.runs.rows import RunRow, row_of
from orchestrator.runs.store import Run
from orchestrator.targets.batch.handle import with_nodes
from orchestrator.targets.batch.inputs import batch_settings
from orchestrator.targets.batch.run_folder import run_folder_of
from orchestrator.targets.batch.scheduler import Scheduler, host_at
from orchestrator.targets.batch.settings import JOB_NAME_PREFIX, location_of, store_of
from orchestrator.targets.batch.system import BatchSystem, JobState, Phase
from orchestrator.targets.connections.program_output import read_response
from orchestrator.targets.interface import RunList, ignore

ENDING_SECONDS = 60.0  # A job may take this long to end or to be requeued after its outcome.
CLEAN_SECONDS = 120.0  # A shared file system can be slow.


def recorded_runs(system: BatchSystem, base: Path) -> Iterator[Run]:
    """Return the runs of this target in the folder of runs, oldest first."""
    return (run for run in store.recorded(base).runs if run.record.target == system.name)


def login_of(system: BatchSystem, inventory: str | None) -> str:
    """Return the login node, or '' if the system's programs are on this machine.

    Args:
        system: the batch system.
        inventory: the value of `--inventory`; the HOST of `slurm:HOST` takes precedence over the
            settings file.

    Raises:
        RequestError: if the settings cannot be read.
        PlanError: if a setting is invalid.
    """
    host = (inventory or "").partition(":")[2]
    settings_file = os.environ.get(f"ORCH_{system.name.upper()}_FILE")
    settings = batch_settings(system, Path(settings_file) if settings_file else None, [f"login={host}"] * bool(host))
    settings.check()
    return settings.login or ""


def list_runs(system: BatchSystem, inventory: str) -> RunList:
    """Return the runs recorded in the local folder of runs, with their current state.

    The user's jobs that are recorded elsewhere are listed as warnings.
    """
    runs = list(recorded_runs(system, Path(RUNS_DIR).absolute()))
    # The cluster of a run that may continue knows its current state.
    active = [run for run in runs if run.outcome is None or run.outcome.state == PREEMPTED]
    clusters = clusters_of(system, login_of(system, inventory), active)
    rows = tuple(run_row(run, clusters.get(cluster_of(run))) for run in runs)
    return RunList(
        rows=rows,
        unreachable=tuple(cluster.problem for cluster in clusters.values() if cluster.problem),
        warnings=tuple(
            f"job {job.job} ({name}, {job.state}) is recorded in another folder"
            for name, job in next(iter(clusters.values())).jobs.items()
            if not job.ended
        ),
    )


def cluster_of(run: Run) -> tuple[str, str]:
    """Return the login node and the cluster of a run; '' for this machine and the default cluster."""
    location = location_of(run.record)
    return location.login, location.cluster


def clusters_of(system: BatchSystem, login: str, runs: Iterable[Run]) -> dict[tuple[str, str], ClusterJobs]:
    """Return the jobs on the default cluster of a login node, and on the clusters of these runs."""
    return {key: ClusterJobs(system, *key) for key in dict.fromkeys([(login, ""), *map(cluster_of, runs)])}


class ClusterJobs:
    """The user's jobs on one cluster, as its batch system reports them.

    Attributes:
        scheduler: the system's programs on the cluster's host.
        problem: why the system could not be queried, or ''.
        jobs: the state of each job whose name begins with JOB_NAME_PREFIX, by name.
    """

    def __init__(self, system: BatchSystem, login: str, cluster: str = "") -> None:
        self.scheduler = Scheduler(system, host_at(login), cluster)
        self.problem = ""
        self.jobs: dict[str, JobState] = {}
        try:
            self.jobs = self.scheduler.query_jobs(JOB_NAME_PREFIX)
        except ExecuteError as error:
            self.problem = error.message

    def current(self, run: Run) -> tuple[Run, JobState | None]:
        """Return a run with its files brought up to date, as far as possible, and its job or its running step."""
        location = location_of(run.record)
        job = self.jobs.get(location.name)
        try:
            if self.scheduler.system.is_step(location.job):
                job = None if run.outcome else self.scheduler.state(location.job)
            if not self.problem and (run.outcome is None or (job and not job.ended)):
                run_folder_of(run.record, run.folder, self.scheduler.host, ignore).refresh()
                run = store.load(run.folder)
        except ExecuteError as error:
            self.problem = error.message
        return run, job


def run_row(run: Run, cluster: ClusterJobs | None) -> RunRow:
    """Return the row of a run in the list.

    Args:
        run: the run as it is recorded on this machine.
        cluster: the jobs of the run's cluster; None if the cluster need not be queried.
    """
    job = None
    if cluster:
        run, job = cluster.current(run)
        cluster.jobs.pop(location_of(run.record).name, None)
    state = run.state if cluster is None or cluster.problem else run_state(run, job)
    return row_of(
        run.record,
        report_of(run.folder, run.outcome),
        state=state,
        nodes=(node.node for node in with_nodes(run.record, run.folder).nodes),
        wait=job.describe() if job and job.phase in (Phase.PENDING, Phase.SUSPENDED) else "",
        folder=str(run.folder),
        precision=precision_of(run),
    )


def run_state(run: Run, job: JobState | None) -> str:
    """Return the state of a run, from its outcome and its job."""
    is_done = run.outcome is not None and run.outcome.state == DONE
    if job is not None and job.phase == Phase.PENDING and not is_done:  # A requeued job is pending, too.
        return "waiting"
    if run.outcome is not None:
        return run.outcome.state
    return "killed" if job is None or job.ended else "running"


def clean(system: BatchSystem, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
    """Cancel the jobs that the system still has although their runs have ended and cannot resume, and clean the stores.

    Raises:
        ExecuteError: if the system does not respond.
    """
    login = login_of(system, inventory)
    runs = [run for run in recorded_runs(system, base) if location_of(run.record).login == login]
    clusters = clusters_of(system, login, runs)
    if problems := [cluster.problem for cluster in clusters.values() if cluster.problem]:
        raise ExecuteError(problems[0], hint=system.check_hint)
    active, nodes = [], []
    for run in runs:
        cluster = clusters[cluster_of(run)]
        run, job = cluster.current(run)
        state = run_state(run, job)
        if state in ("running", "waiting"):
            active.append(run.id)
        # A pending job resumes its run later, and a job that has just written its outcome is about to end.
        elif job and not job.ended and run.outcome and time.time() - run.outcome.ended > ENDING_SECONDS:
            if dry_run:
                nodes.append(NodeCleanup(node=f"job {job.job}", state="left", left=(job.state,)))
            else:
                cluster.scheduler.cancel(job.job)
                nodes.append(NodeCleanup(node=f"job {job.job}", state="clean", ended=(job.state,)))
    for cluster in clusters.values():
        cluster.scheduler.host.close()
        active += [name.removeprefix(JOB_NAME_PREFIX) for name, job in cluster.jobs.items() if not job.ended]
    stores = clean_stores(login, (run.record for run in runs), active, dry_run=dry_run)
    return CleanupReport(run_id="", seconds=0.0, nodes=(*nodes, *stores))


def clean_stores(
    login: str, records: Iterable[RunRecord], living: Iterable[str], *, dry_run: bool
) -> Iterator[NodeCleanup]:
    """Yield the result for each store that has unused folders, or that could not be searched.

    Args:
        login: the host; '' for this machine.
        records: the runs of the host.
        living: the ids of runs that may not have ended.
        dry_run: only report what is unused.
    """
    options = (*["--dry-run"] * dry_run, "--except", *living)
    newest = {store_of(record.run_dir): record for record in sorted(records, key=lambda record: record.created)}
    with contextlib.closing(host_at(login)) as host:
        for store, record in newest.items():
            if host.capture(("test", "-d", store), seconds=CLEAN_SECONDS).code != 0:
                continue
            command = (record.python, f"{record.train}/node.py", "cleanup", "store", store, *options)
            result = host.capture(command, seconds=CLEAN_SECONDS)
            try:
                unused, problem = read_response(result, Cleaned).unused, ""
            except ExecuteError as error:
                unused, problem = (), f"{store}: {error.message}"
            if unused or problem:
                yield NodeCleanup(
                    node=login or "this machine",
                    state="left" if problem or dry_run else "clean",
                    left=tuple(f"{path}: no run uses it" for path in unused) if dry_run else (),
                    problem=problem,
                    unused=() if dry_run else unused,
                )
