"""The target that runs requests as jobs of Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.model.finding import Finding
from orchestrator.model.hostlist import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.targets.batch import find, inputs, start
from orchestrator.targets.batch.handle import SlurmHandle
from orchestrator.targets.batch.options import REFUSES, SlurmOptions
from orchestrator.targets.interface import CheckRequest, NodeCommands, Notify, RunHandle, RunList, SharedFolder


class SlurmTarget:
    """The target `--on slurm`.

    Attributes:
        name: the name of the target.
        refuses: the fields of a request that the target does not support.
        options: the options that only this target has.
    """

    name = "slurm"
    refuses = REFUSES
    options: type[TargetOptions] | None = SlurmOptions

    def plan(self, request: TrainRequest) -> Plan:
        """Return the plan of a job, or of an array of jobs."""
        return inputs.plan(request)

    def check(self, request: CheckRequest, notify: Notify) -> Iterator[Finding]:
        """Yield nothing: the batch system itself refuses a job that cannot run, with the reason."""
        yield from ()

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        """Record the plan, submit its script, and return a handle of the run."""
        return SlurmHandle(start.start(plan, folder), folder)

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        """Return a handle of a recorded run."""
        return SlurmHandle(record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        """Return a handle of a run that is recorded on this machine."""
        return SlurmHandle(*find.find_run(base, name, inventory, notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        """Return the folder that `orch provision` fills; raise RequestError if there is none."""
        return inputs.shared_folder(options)

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> NodeCommands:
        """Raise RequestError: Slurm gives nodes to jobs only."""
        raise RequestError("Slurm gives its nodes to jobs only.", hint="To get a shell on a node: srun --pty bash.")

    def list_runs(self, inventory: str) -> RunList:
        """Return the runs recorded on this machine, with their current state in Slurm."""
        return find.list_runs(inventory)

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        """Cancel the jobs whose runs have ended; with `dry_run`, only report them."""
        return find.clean(inventory, base, dry_run=dry_run)
