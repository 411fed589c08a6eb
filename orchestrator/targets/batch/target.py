"""The target that runs requests as jobs of a batch system."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest, UnsupportedOption
from orchestrator.runs.outcome import CleanupReport
from orchestrator.targets.batch import find, inputs, start
from orchestrator.targets.batch.handle import BatchHandle
from orchestrator.targets.batch.system import BatchSystem
from orchestrator.targets.interface import LiveNode, NodeCommands, Notify, RunHandle, RunList, SharedFolder, Target


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
        self.refuses = unsupported_options(system)
        self.options: type[TargetOptions] | None = system.options

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        """Return the plan of a job, or of an array of jobs."""
        return inputs.plan(self.system, request, resume)

    def measurement_file(self, request: TrainRequest) -> Path:
        """Return the file of what `orch bench` measures on the nodes that a request selects."""
        return inputs.measurement_file(inputs.settings_of(self.system, request))

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        """Record the plan, submit its script, and return a handle of the run."""
        record, earlier = start.start(self.system, plan, folder)
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


def unsupported_options(system: BatchSystem) -> Mapping[str, UnsupportedOption]:
    """Return why the target refuses a field of a request, by the name of the field."""
    nodes = "is for nodes behind SSH"
    return {
        "inventory": UnsupportedOption(nodes, system.node_hints["inventory"]),
        "exclude": UnsupportedOption(nodes, system.node_hints["exclude"]),
        "wait_for_cores": UnsupportedOption(nodes, f"Jobs of {system.title} wait for free nodes by themselves."),
        "ccl_workers": UnsupportedOption(nodes, "Leave it out: each rank computes on all of its cores."),
        "fabric": UnsupportedOption(
            f"{nodes}, on which it was verified", "Leave it out: ranks use TCP over the network of the nodes."
        ),
        "accelerate_config": UnsupportedOption(
            f"is not read on {system.title}", "Use the options --nodes, --ppn and --precision."
        ),
    }
