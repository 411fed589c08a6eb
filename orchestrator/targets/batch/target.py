"""The target that runs requests as jobs of a batch system, and a run that is such a job."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from orch_node import disk
from orch_node.protocol.events import Event
from orch_node.protocol.outcome import FAILED
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError, RequestError
from orchestrator.files import state_home, write_whole
from orchestrator.model.hosts import Nodes
from orchestrator.model.printable import counted
from orchestrator.planning.plan import SCRIPT, Plan, SubmitScript
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest
from orchestrator.planning.run_files import project_copy
from orchestrator.runs import store
from orchestrator.runs.fetch import Collected, FetchListener, Source
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, RunOutcome, outcome_of
from orchestrator.runs.state_files import ACCOUNTING, PLAN, outcome_in, write_json
from orchestrator.runs.store import Positions
from orchestrator.targets.batch import find, inputs
from orchestrator.targets.batch.scheduler import Scheduler, host_at
from orchestrator.targets.batch.settings import location_of, store_of, with_job
from orchestrator.targets.batch.system import BatchSystem, Phase
from orchestrator.targets.batch.watch import (
    JobWatch,
    RemoteFolder,
    delete_remote_files,
    log_lines,
    run_folder_of,
    update_record,
    write_remote_record,
)
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import WRITE_HINT, Local
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.execute import execute
from orchestrator.targets.fetch import fetch_files, fetch_project, requested_node
from orchestrator.targets.interface import (
    FetchRequest,
    LiveNode,
    NodeCommands,
    Notify,
    RunHandle,
    RunList,
    SharedFolder,
    Target,
    ignore,
)

STOP_SECONDS = 30.0  # The supervisor ends all ranks within this time.
GONE_SECONDS = 60.0  # The batch system ends a cancelled job within this time.
END_SECONDS = 10.0  # A job ends within this time after its run's outcome.
POLL_SECONDS = 0.5
TICK_SECONDS = 0.2


class BatchHandle(RunHandle):
    """A run that is a job of a batch system.

    The run's supervisor writes its files to a shared file system, which this machine or a login node
    sees.

    Attributes:
        system: the batch system.
    """

    def __init__(
        self, system: BatchSystem, record: RunRecord, folder: Path, earlier: store.Positions | None = None
    ) -> None:
        super().__init__(record, folder, earlier)
        self.system = system

    @cached_property
    def host(self) -> Local | Ssh:
        """Return the connection to the host with the system's programs."""
        return host_at(location_of(self.record).login)

    @cached_property
    def watch(self) -> JobWatch:
        """Return the watch over the job that all methods but logs() share."""
        return self.new_watch(self.host)

    def new_watch(self, host: Local | Ssh) -> JobWatch:
        """Return a watch over the run's job that uses a connection.

        Raises:
            ExecuteError: if the run has no job.
        """
        if not location_of(self.record).job:
            raise ExecuteError(
                f"{self.record.run_id} was not submitted to {self.system.title}.",
                hint="Run the same `orch train` command again.",
            )

        def notify(line: str) -> None:
            self.notify(line)  # a command may set its own callback after the watch was created

        run_folder = run_folder_of(self.record, self.folder, host, notify)
        scheduler = Scheduler(self.system, host, location_of(self.record).cluster)
        return JobWatch(self.record, self.folder, scheduler, run_folder, notify, first_byte=self.earlier.events)

    def started(self) -> None:
        """Check that the job can start, and wait for nothing else: the system has it.

        Raises:
            ExecuteError: if the job can never start.
        """
        next(iter(self.watch.queue_events()), None)

    def events(self) -> Iterator[Event]:
        """Yield the events of the run until it ends, and adopt the nodes that the job was given."""
        yield from self.watch.events()
        self.record = self.watch.record

    def interrupt(self) -> None:
        """End the run and its job."""
        self.end()

    def refresh(self) -> None:
        """Update the events of the run, and write its outcome if its job has ended."""
        run_folder = self.watch.run_folder
        if isinstance(run_folder, RemoteFolder):
            run_folder.mirror.refresh()
        if self.watch.state(now=True).ended:
            self.watch.ensure_outcome()
        if self.watch.unreachable:
            raise ExecuteError(f"{self.system.no_response}.", hint="Run the same command again.")

    def finish(self) -> RunOutcome:
        """Copy the results of the run if the connection allows it, and return the outcome."""
        try:
            self.watch.run_folder.finish(self.record.output_dir)
        except ConnectionLost as error:
            self.notify(f"the files of the run are incomplete: {error.message}")
            return outcome_of(store.load(self.folder))
        self.record_end()
        return outcome_of(store.load(self.folder))

    def record_end(self) -> None:
        """Write the system's accounting of the job, if the job has ended or is about to."""
        watch = self.watch
        if outcome_in(self.folder) is not None:
            wait_until(lambda: watch.state(now=True).ended or watch.unreachable, END_SECONDS, POLL_SECONDS)
        if not watch.state(now=True).ended:
            return
        watch.ensure_outcome()
        job, state = watch.job, watch.last_state
        record = watch.run_folder.attempt(lambda: watch.scheduler.accounting(job, state), None)
        if record is not None:
            try:
                write_json(self.folder / ACCOUNTING, asdict(record))
            except OSError as error:
                self.notify(disk.describe_error(self.folder / ACCOUNTING, error))

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines over a separate connection.

        A caller may iterate over events() at the same time.

        Raises:
            ExecuteError: with the job's output, if the run failed before any rank wrote a line.
        """
        with closing(host_at(location_of(self.record).login)) as host:
            watch = self.new_watch(host)
            watch.notify = ignore  # events() reports a system that does not respond, which no line depends on
            watch.refresh()
            watch.record_nodes()
            run, starts = store.load(self.folder), self.earlier.logs
            is_empty = True
            for line in log_lines(watch, run, rank=rank, follow=follow, starts=starts):
                is_empty = False
                yield line
            has_failed = run.outcome is not None and run.outcome.state == FAILED
            if is_empty and has_failed and rank is None and not follow and (output := watch.supervisor_output()):
                raise ExecuteError(
                    f"{run.id}: no rank has written a line. The output of job {watch.job}:\n{output}",
                    hint=f"When its cause is removed: orch resume {run.id}.",
                )

    def discard(self) -> None:
        """Keep the files: the job has claimed its nodes before its ranks can be refused."""

    def stop(self) -> CleanupReport:
        """End the run, and report what each of its nodes and its job have left."""
        began = time.monotonic()
        problem = self.end()
        outcome = outcome_in(self.folder)
        node_ends = outcome.nodes if outcome else {}
        nodes = tuple(
            NodeCleanup(
                node=name,
                state="unreachable" if problem else "left" if end.left else "clean",
                ended=(counted(end.ended, "process"),) if end.ended else (),
                left=tuple(f"{process.name} ({process.pid})" for process in end.left),
                segments=end.segments,
                segments_left=end.segments_left,
                problem=problem or end.lost or "",
            )
            for name, end in node_ends.items()
        )
        job = NodeCleanup(node=f"job {self.watch.job}", state="left" if problem else "clean", problem=problem)
        seconds = round(time.monotonic() - began, 3)
        return CleanupReport(run_id=self.record.run_id, seconds=seconds, nodes=(*nodes, job))

    def end(self) -> str:
        """End the run, and return the problem if its job is still running, or ''.

        The supervisor is stopped first, because it records what each node has left. Then the system ends what
        remains of the job.
        """
        watch = self.watch
        job = watch.state(now=True)
        if watch.unreachable:  # The supervisor reads the stop file, and a job without processes ends.
            watch.request_stop()
            stopped = wait_until(self.is_over, STOP_SECONDS)
            return (
                ""
                if stopped
                else f"{self.system.no_response}; the run ends as soon as its supervisor sees the stop file"
            )
        if job.phase == Phase.RUNNING:
            watch.terminate(0)
            wait_until(lambda: self.is_over() or watch.state().ended, STOP_SECONDS)
        if not watch.state(now=True).ended:
            watch.scheduler.cancel(watch.job)
        if not wait_until(lambda: watch.state().ended, GONE_SECONDS):
            return f"{self.system.title} still reports job {watch.job} as {watch.last_state.state}"
        watch.ensure_outcome()
        return ""

    def is_over(self) -> bool:
        """Return whether the run has an outcome, after updating its local files."""
        self.watch.refresh()
        return outcome_in(self.folder) is not None

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        """Raise RequestError with the command that reaches the nodes of the job."""
        location = location_of(self.record)
        host = f" on {location.login}" if location.login else ""
        raise RequestError(
            f"{self.record.run_id} is a job of {self.system.title}, which itself runs commands on its nodes.",
            hint=f"While the job runs{host}: {self.system.job_shell.format(job=location.job)}.",
        )

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        """Copy files of the run from the shared file system, which is the same on every node.

        Raises:
            RequestError: if the run has no node of the requested name, or no project as it was sent.
        """
        requested_node(self.record, request.node)
        source = Source(name=self.record.node0.node, remote=self.host)
        if request.project:
            is_local, copy = isinstance(self.host, Local), project_copy(self.record.run_dir)
            store_folder = str(state_home() / "store") if is_local else store_of(self.record.run_dir)
            return fetch_project(source, store_folder, copy, self.folder, request, listener)
        return fetch_files([source], self.folder, request, listener)


def wait_until(condition: Callable[[], bool], seconds: float, tick: float = TICK_SECONDS) -> bool:
    """Wait until the condition holds, and return whether it did within the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(tick)
    return True


class BatchTarget(Target):
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

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        """Record the plan, submit its script, and return a handle of the run."""
        record, earlier = start(self.system, plan, folder)
        return BatchHandle(self.system, record, folder, earlier=earlier)

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        """Return a handle of a recorded run."""
        return BatchHandle(self.system, record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        """Return a handle of a run that is recorded on this machine."""
        return BatchHandle(self.system, *find.find_run(self.system, base, name, notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        """Return the folder that `orch provision` fills; raise RequestError if there is none."""
        return inputs.shared_folder(self.system, options)

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> NodeCommands:
        """Raise RequestError: a batch system gives nodes to jobs only."""
        raise RequestError(
            f"{self.system.title} gives its nodes to jobs only.",
            hint=f"To get a shell on a node: {self.system.node_shell}.",
        )

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[LiveNode]:
        """Raise RequestError: the batch system itself shows its nodes."""
        raise RequestError(f"{self.system.title} manages its nodes.", hint="Its own commands list them.")

    def list_runs(self, inventory: str) -> RunList:
        """Return the runs recorded on this machine, with their current state."""
        return find.list_runs(self.system, inventory)

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        """Cancel the jobs whose runs have ended; with `dry_run`, only report them."""
        return find.clean(self.system, inventory, base, dry_run=dry_run)


def start(system: BatchSystem, plan: Plan, folder: Path) -> tuple[RunRecord, Positions | None]:
    """Record the plan and submit its script.

    The run continues when this program ends. After an interrupted start only a run that the batch system has
    accepted is recorded.

    Returns:
        The record of the run, and what belongs to earlier attempts of a resumed run; None for a new run.

    Raises:
        OrchError: if the run cannot be started.
    """
    plans = plan.array or (plan,)
    *preparation, submission = plan.steps
    assert isinstance(submission, SubmitScript)
    folders = [folder.parent / member.run.run_id for member in plans]
    earlier_plan = store.plan_bytes(folder)
    earlier = store.positions(folder) if earlier_plan else None
    for member, run_folder in zip(plans, folders, strict=True):
        store.create(member, run_folder)

    def forget_start() -> None:
        if earlier_plan:
            with contextlib.suppress(OSError):  # a full disk, which is reported already
                write_whole(folder / PLAN, earlier_plan)
        else:
            delete_folders(plan, folders, host)

    host = host_at(location_of(plan.run).login)
    scheduler = Scheduler(system, host)
    try:
        execute(preparation, {node.node: host for step in preparation for node in step.nodes})
        scheduler.submit(submission)
        if earlier:
            store.forget_end(folder)
        return record_jobs(plan, folders, scheduler), earlier
    except KeyboardInterrupt:
        if scheduler.has_accepted(submission.name):
            record_jobs(plan, folders, scheduler)  # so that the job can be stopped
        elif not scheduler.uncertain:
            forget_start()
        raise
    except OrchError:
        if not scheduler.submitted and not scheduler.uncertain:
            forget_start()
        raise
    finally:
        host.close()


def record_jobs(plan: Plan, folders: list[Path], scheduler: Scheduler) -> RunRecord:
    """Write the job of each run of the plan into its record, and return the first record.

    Raises:
        ExecuteError: if a record cannot be written; on this machine, the job is cancelled.
    """
    plans = plan.array or (plan,)
    job, cluster = scheduler.submitted, scheduler.cluster
    jobs = [scheduler.system.array_job(job, number) for number in range(len(plans))] if plan.array else [job]
    records = [with_job(member.run, job, cluster) for member, job in zip(plans, jobs, strict=True)]
    try:
        for record, run_folder in zip(records, folders, strict=True):
            update_record(record, run_folder)
    except OSError as error:
        problem = disk.describe_error(folders[0], error)
        try:
            scheduler.cancel(job)
        except ExecuteError as failure:
            raise ExecuteError(
                f"{problem}, so job {job} is not recorded. {failure.message}", hint=failure.hint
            ) from None
        scheduler.submitted = ""
        raise ExecuteError(f"{problem}, so orch cancelled job {job}.", hint=WRITE_HINT) from None
    if isinstance(scheduler.host, Ssh):
        for record in records:
            write_remote_record(record, scheduler.host)
    return records[0]


def delete_folders(plan: Plan, folders: list[Path], host: Local | Ssh) -> None:
    """Delete the folders of runs that were not submitted."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    scripts = [step.run_dir for step in plan.steps if isinstance(step, SubmitScript)]
    if isinstance(host, Ssh):
        copies = [project_copy(member.run.run_dir) for member in plan.array or (plan,) if member.project]
        delete_remote_files(host, (f"{scripts[0]}/{SCRIPT}", *copies))
    elif plan.array:
        shutil.rmtree(scripts[0], ignore_errors=True)
