"""Define the target that runs on this machine or on nodes reached through SSH."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.load.facts import DamagedRecord, read_record
from orchestrator.load.inventory import read_inventory
from orchestrator.load.records import state_of
from orchestrator.model.finding import Finding, finding_of
from orchestrator.model.hostlist import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest
from orchestrator.targets.interface import (
    CheckRequest,
    LiveNode,
    NodeCommands,
    Notify,
    RunHandle,
    RunList,
    SharedFolder,
    Target,
)
from orchestrator.targets.ssh import inputs

if TYPE_CHECKING:
    from orchestrator.runs.cleanup import CleanupReport


class SshTarget(Target):
    """The nodes of an inventory, or this machine if no inventory is named."""

    name = "ssh"

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        return inputs.plan(request, resume)

    def check(self, request: CheckRequest) -> Iterator[Finding]:
        """Yield each node whose record is missing or damaged."""
        source = find_inventory(request.inventory)
        state = state_of(source)
        for name in read_inventory(source):
            try:
                if read_record(state.record(name)) is None:
                    cure = f"orch provision {request.inventory}"
                    yield Finding(subject=name, severity="unknown", message="nothing is recorded yet", cure=cure)
            except DamagedRecord as error:
                yield finding_of(error, name)

    def measurement_file(self, request: TrainRequest) -> Path:
        return inputs.measurement_file(request.inventory)

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        from orchestrator.targets.ssh import start
        from orchestrator.targets.ssh.handle import SshHandle

        return SshHandle(plan.run, folder, earlier=start.start(plan, folder), stays_connected=True)

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        from orchestrator.targets.ssh.handle import SshHandle

        return SshHandle(record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        from orchestrator.targets.ssh import find

        return self.handle(*find.find_run(base, name, inventory, notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        raise RequestError(
            "Nodes behind SSH have no shared folder; each is set up by itself.", hint="Run `orch provision INVENTORY`."
        )

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> NodeCommands:
        from orchestrator.targets.ssh import commands

        return commands.on_cluster(inventory, nodes, stack)

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[LiveNode]:
        from orchestrator.targets.ssh import usage

        return usage.query_inventory(inventory, names)

    def list_runs(self, inventory: str) -> RunList:
        from orchestrator.targets.ssh import find

        recorded = find.query_inventory(inventory)

        def open_run(base: Path, name: str, notify: Notify) -> RunHandle:
            return self.handle(*find.find_run(base, name, inventory, notify, recorded=recorded))

        return replace(find.list_runs(recorded), open=open_run)

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        from orchestrator.targets.ssh import cleanup

        return cleanup.clean(inventory, base, dry_run=dry_run)
