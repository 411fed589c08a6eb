"""The target that runs requests as jobs of a batch system."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

from orch_node import disk
from orch_node.protocol import values
from orch_node.protocol.outcome import REFUSED
from orch_node.protocol.record import RunRecord, render

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import write_whole
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import SCRIPT, Plan, SubmitScript
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest
from orchestrator.planning.run_files import project_copy
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.batch import find, inputs
from orchestrator.targets.batch.handle import BatchHandle
from orchestrator.targets.batch.run_folder import update_record
from orchestrator.targets.batch.scheduler import Scheduler, host_at
from orchestrator.targets.batch.settings import location_of, with_job
from orchestrator.targets.batch.system import BatchSystem
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import WRITE_HINT, Local
from orchestrator.targets.entry import refused_by_manager
from orchestrator.targets.execute import execute
from orchestrator.targets.interface import LiveNode, NodeCommands, Notify, RunHandle, RunList, SharedFolder, Target

DELETE_SECONDS = 30.0


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
                    write_whole(folder / PLAN, earlier_plan)
            else:
                delete_folders(plan, folders, host)
            raise
        finally:
            host.close()

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        """Return a handle of a recorded run."""
        return BatchHandle(self.system, record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        """Return a handle of a run that is recorded on this machine."""
        scope = f"on {self.system.title} in {base}"
        runs = {run.id: run for run in find.recorded_runs(self.system, base)}
        if not runs:
            raise RequestError(
                f"There is no run '{name}' {scope}.",
                hint="Runs are recorded in the folder in which they were started. --runs-dir selects another folder.",
            )
        records = [run.record for run in runs.values()]
        refused = [run.id for run in runs.values() if run.state == REFUSED]
        run = runs[store.match_id(name, records, scope, notify, refused=refused)]
        return BatchHandle(self.system, run.record, run.folder)

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
            raise ExecuteError(
                f"{problem}, so job {job} is not recorded. {failure.message}", hint=failure.hint
            ) from None
        scheduler.submitted = ""
        raise ExecuteError(f"{problem}, so orch cancelled job {job}.", hint=WRITE_HINT) from None
    if isinstance(scheduler.host, Ssh):
        for record in records:  # for users who log in there
            location = values.record(replace(location_of(record), login=""))
            text = json.dumps(render(replace(record, location=location)), indent=1) + "\n"
            scheduler.host.put(f"{record.run_dir}/{PLAN}", text)
    return records[0]


def delete_folders(plan: Plan, folders: list[Path], host: Local | Ssh) -> None:
    """Delete the folders of runs that were not submitted."""
    for folder in folders:
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
