"""The target that runs requests as jobs of a batch system, and finds, lists and cleans up its runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from orch_node import disk
from orch_node.agent.run_folders import report_of
from orch_node.protocol import files, values
from orch_node.protocol.batch import SCRIPT
from orch_node.protocol.node_reports import Cleaned
from orch_node.protocol.outcome import DONE, PREEMPTED, REFUSED
from orch_node.protocol.record import RunRecord, render

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import state_home, write_whole
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest, find_options
from orchestrator.planning.run_files import project_copy
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, precision_of
from orchestrator.runs.rows import RunRow, row_of
from orchestrator.runs.store import Run
from orchestrator.targets import interface
from orchestrator.targets.batch import inputs
from orchestrator.targets.batch.handle import BatchHandle, with_nodes
from orchestrator.targets.batch.run_folder import update_record
from orchestrator.targets.batch.scheduler import Scheduler, host_at
from orchestrator.targets.batch.settings import JOB_NAME_PREFIX, location_of, store_of, with_job
from orchestrator.targets.batch.system import BatchSystem, JobState, Phase
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import WRITE_HINT, Local
from orchestrator.targets.connections.program_output import read_response
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.execute import execute

DELETE_SECONDS = 30.0
ENDING_SECONDS = 60.0  # A job may take this long to end or to be requeued after its outcome.
CLEAN_SECONDS = 120.0  # A shared file system can be slow.


class BatchTarget(interface.Target):
    """The target of a batch system, such as `--on slurm`.

    Attributes:
        system: the batch system.
        name: the name of the target.
        refuses: the fields of a request that the target does not support.
        options: the options that only this target has.
    """

    def __init__(self, system: BatchSystem) -> None:
        self.system = system
        self.name = system.name
        hints = system.node_hints
        self.refuses = refused_by_manager(system.title, hints["inventory"], hints["exclude"])
        self.options: type[TargetOptions] | None = system.options

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        """Return the plan of a job, or of an array of jobs."""
        return inputs.plan(self.system, request, resume)

    def measurement_file(self, request: TrainRequest) -> Path:
        """Return the file of what `orch bench` measures on the nodes that a request selects."""
        return inputs.measurement_file(inputs.settings_of(self.system, request))

    def start(self, plan: Plan, folder: Path) -> interface.RunHandle:
        """Record the plan, submit its script, and return a handle of the run.

        The run continues when this program ends. After an interrupted start only a run that the batch system has
        accepted is recorded.
        """
        plans = plan.array or (plan,)
        *preparation, submission = plan.steps
        assert isinstance(submission, SubmitScript)
        folders = [folder.parent / member.run.run_id for member in plans]
        earlier_plan = store.plan_bytes(folder)
        earlier = store.positions(folder) if earlier_plan else None
        for member, run_folder in zip(plans, folders, strict=True):
            store.create(member, run_folder)
        host = host_at(location_of(plan.run).login)
        scheduler = Scheduler(self.system, host)
        try:
            execute(preparation, {node.node: host for step in preparation for node in step.nodes})
            scheduler.submit(submission)
            if earlier:
                store.forget_end(folder)
            return BatchHandle(self.system, record_jobs(plan, folders, scheduler), folder, earlier)
        except (KeyboardInterrupt, OrchError) as error:
            if isinstance(error, KeyboardInterrupt) and scheduler.has_accepted(submission.name):
                record_jobs(plan, folders, scheduler)  # so that the job can be stopped
            elif scheduler.submitted or scheduler.uncertain:
                pass
            elif earlier_plan:
                with contextlib.suppress(OSError):  # a full disk, which is reported already
                    write_whole(folder / files.PLAN, earlier_plan)
            else:
                delete_folders(plan, folders, host)
            raise
        finally:
            host.close()

    def handle(self, record: RunRecord, folder: Path) -> interface.RunHandle:
        """Return a handle of a recorded run."""
        return BatchHandle(self.system, record, folder)

    def recorded_runs(self, base: Path) -> list[Run]:
        """Return the runs of this target in the folder of runs, oldest first."""
        return [run for run in store.recorded(base).runs if run.record.target == self.name]

    def login_of(self, inventory: str | None) -> str:
        """Return the login node, or '' if the system's programs are on this machine.

        Args:
            inventory: the value of `--inventory`; the HOST of `slurm:HOST` takes precedence over the
                settings file.

        Raises:
            RequestError: if the settings cannot be read.
            PlanError: if a setting is invalid.
        """
        host = (inventory or "").partition(":")[2]
        file = os.environ.get(f"ORCH_{self.name.upper()}_FILE")
        settings = inputs.batch_settings(self.system, Path(file) if file else None, [f"login={host}"] * bool(host), {})
        settings.check()
        return settings.login or ""

    def find(self, base: Path, name: str, inventory: str, notify: interface.Notify) -> interface.RunHandle:
        """Return a handle of a run that is recorded on this machine."""
        scope = f"on {self.system.title} in {base}"
        runs = {run.id: run for run in self.recorded_runs(base)}
        if not runs:
            raise RequestError.about("no-recorded-run", run=name, scope=scope)
        records = [run.record for run in runs.values()]
        refused = [run.id for run in runs.values() if run.state == REFUSED]
        run = runs[store.match_id(name, records, scope, notify, refused=refused)]
        return BatchHandle(self.system, run.record, run.folder)

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> interface.SharedFolder:
        """Return the folder that `orch provision` fills; raise RequestError if there is none."""
        system_options = find_options(self.system.options, options)
        batch = inputs.batch_settings(self.system, *self.system.values_in(system_options))
        batch.check()
        if batch.root is None:
            raise RequestError.about("no-shared-folder", system=self.system)
        return interface.SharedFolder(host=batch.login or "", root=batch.root)

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> interface.NodeCommands:
        """Raise RequestError: a batch system gives nodes to jobs only."""
        raise RequestError.about("no-node-commands", system=self.system)

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[interface.LiveNode]:
        """Raise RequestError: the batch system itself shows its nodes."""
        raise RequestError(f"{self.system.title} manages its nodes.", hint="Its own commands list them.")

    def list_runs(self, inventory: str, base: Path) -> interface.RunList:
        """Return the runs recorded in the local folder of runs, with their current state.

        The user's jobs that are recorded elsewhere are listed as warnings.
        """
        runs = self.recorded_runs(base)
        # The cluster of a run that may continue knows its current state.
        active = [run for run in runs if run.outcome is None or run.outcome.state == PREEMPTED]
        clusters = clusters_of(self.system, self.login_of(inventory), active)
        return interface.RunList(
            rows=tuple(run_row(run, clusters.get(cluster_of(run))) for run in runs),
            unreachable=tuple(cluster.problem for cluster in clusters.values() if cluster.problem),
            warnings=tuple(
                f"job {job.job} ({name}, {job.state}) is recorded in another folder"
                for name, job in next(iter(clusters.values())).jobs.items()
                if not job.ended
            ),
        )

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        """Cancel the jobs of runs that have ended and cannot resume, and clean the stores.

        Raises:
            ExecuteError: if the system does not respond.
        """
        login = self.login_of(inventory)
        runs = [run for run in self.recorded_runs(base) if location_of(run.record).login == login]
        clusters = clusters_of(self.system, login, runs)
        if problems := [cluster.problem for cluster in clusters.values() if cluster.problem]:
            raise ExecuteError(problems[0], hint=self.system.check_hint)
        active, nodes = [], []
        for run in runs:
            cluster = clusters[cluster_of(run)]
            run, job = cluster.current(run)
            if run_state(run, job) in ("running", "waiting"):
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
        try:
            self.jobs, self.problem = self.scheduler.query_jobs(JOB_NAME_PREFIX), ""
        except ExecuteError as error:
            self.jobs, self.problem = {}, f"{system.title}: {error.message.removeprefix(f'{system.no_response}: ')}"

    def current(self, run: Run) -> tuple[Run, JobState | None]:
        """Return a run with its files brought up to date, as far as possible, and its job or its running step."""
        location = location_of(run.record)
        job = self.jobs.get(location.name)
        try:
            if self.scheduler.system.is_step(location.job):
                job = None if run.outcome else self.scheduler.state(location.job)
            if not self.problem and (run.outcome is None or (job and not job.ended)):
                handle = BatchHandle(self.scheduler.system, run.record, run.folder)
                handle.host = self.scheduler.host
                handle.run_folder.refresh()
                if location.job and (job is None or job.ended):
                    handle.refresh()  # which writes how the job has ended
                run = store.load(run.folder)
        except ExecuteError as error:
            self.problem = f"{self.scheduler.system.title}: {error.message}"
        return run, job


def run_row(run: Run, cluster: ClusterJobs | None) -> RunRow:
    """Return the row of a run in the list.

    Args:
        run: the run as it is recorded on this machine.
        cluster: the jobs of the run's cluster; None if the cluster need not be queried.
    """
    run, job = cluster.current(run) if cluster else (run, None)
    if cluster:
        cluster.jobs.pop(location_of(run.record).name, None)
    return row_of(
        run.record,
        report_of(run.folder, run.outcome),
        state=run.state if cluster is None or cluster.problem else run_state(run, job),
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
    local = [] if login else [str(state_home() / "store")]  # of projects
    ordered = sorted(records, key=lambda record: record.created)
    newest = {path: record for record in ordered for path in (store_of(record.run_dir), *local)}
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


def record_jobs(plan: Plan, folders: list[Path], scheduler: Scheduler) -> RunRecord:
    """Write the job of each run of the plan into its record, and return the first record.

    Raises:
        ExecuteError: if a record cannot be written; on this machine, the job is cancelled.
    """
    plans = plan.array or (plan,)
    job, cluster = scheduler.submitted, scheduler.cluster
    jobs = [scheduler.system.array_job(job, number) for number in range(len(plans))] if len(plans) > 1 else [job]
    records = [with_job(member.run, job, cluster) for member, job in zip(plans, jobs, strict=True)]
    try:
        for record, run_folder in zip(records, folders, strict=True):
            update_record(record, run_folder)
    except OSError as error:
        problem = disk.describe_error(folders[0], error)
        try:
            scheduler.cancel(job)
        except ExecuteError as failure:
            problem = f"{problem}, so job {job} is not recorded. {failure.message}"
            raise ExecuteError(problem, hint=failure.hint) from None
        scheduler.submitted = ""
        raise ExecuteError(f"{problem}, so orch cancelled job {job}.", hint=WRITE_HINT) from None
    if isinstance(scheduler.host, Ssh):
        for record in records:  # for users who log in there
            location = values.record(replace(location_of(record), login=""))
            text = json.dumps(render(replace(record, location=location)), indent=1) + "\n"
            scheduler.host.put(f"{record.run_dir}/{files.PLAN}", text)
    return records[0]


def delete_folders(plan: Plan, folders: list[Path], host: Local | Ssh) -> None:
    """Delete the folders of runs that were not submitted; results of a job that has already ended are kept."""
    for folder in folders:
        if not (folder / files.RANKS).exists():
            shutil.rmtree(folder, ignore_errors=True)
    (script_folder,) = [step.run_dir for step in plan.steps if isinstance(step, SubmitScript)]
    if isinstance(host, Ssh):
        copies = [project_copy(member.run.run_dir) for member in plan.array or (plan,) if member.project]
        paths = [f"{script_folder}/{SCRIPT}", *copies]
        with contextlib.suppress(ExecuteError):
            host.capture(("rm", "-rf", "--", *paths), seconds=DELETE_SECONDS)
            emptied = dict.fromkeys(str(PurePosixPath(path).parent) for path in paths)
            host.capture(("rmdir", "--", *emptied), seconds=DELETE_SECONDS)
    elif plan.array:
        shutil.rmtree(script_folder, ignore_errors=True)
