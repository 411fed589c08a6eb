"""Define the target that runs on this machine or on nodes reached through SSH, and read what its requests name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.files import EVENTS
from orch_node.protocol.layout import AUTO
from orch_node.protocol.record import RunRecord

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.files import TRAIN, State, state_home
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inputs import run_paths_of
from orchestrator.load.inventory import inventory_files, read_inventory
from orchestrator.load.records import MEASURED, DamagedRecord, read_measurement, read_record
from orchestrator.model.decision import Finding, finding_of
from orchestrator.model.hosts import Nodes
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.plan import Plan, PutFile, SendFile, Step
from orchestrator.planning.request import Resume, TargetOptions, TrainRequest
from orchestrator.planning.resolve import Inputs
from orchestrator.runs.outcome import CleanupReport
from orchestrator.targets import interface
from orchestrator.targets.ssh import find
from orchestrator.targets.ssh.handle import SshHandle, start
from orchestrator.targets.ssh.nodes import on_cluster, query_inventory
from orchestrator.targets.ssh.plan import plan_train
from orchestrator.targets.ssh.user_python import with_user_python


def read(request: TrainRequest, accelerate: AccelerateOptions | None) -> tuple[TrainRequest, Inputs]:
    """Load the files that a request names.

    Args:
        request: the request.
        accelerate: the options of its configuration of accelerate, if it names one.

    Returns:
        The request, with options that only its configuration of accelerate sets, and the files.
    """
    if accelerate is not None:
        nodes = accelerate.nodes if request.nodes is None else request.nodes
        precision = (accelerate.precision or AUTO) if request.precision == AUTO else request.precision
        request = replace(request, nodes=nodes, ppn=request.ppn or accelerate.ppn, precision=precision)
    has_image = request.image is not None or request.image_options
    docker = load.docker(request.image, request.image_options, request.inventory) if has_image else None
    cluster = load.cluster(
        request.inventory, request.stack, nodes=request.nodes, exclude=request.exclude, spares=request.spare_nodes
    )
    if request.python is not None:
        cluster = with_user_python(request, cluster)
    node0 = cluster.nodes[0] if cluster.nodes else None
    is_remote = not all(node.local for node in cluster.nodes)
    has_project = is_remote and not (request.module and docker)
    # A home that the controller shares with its nodes has orch's folder, too.
    roots = [Path(node.root) for node in cluster.nodes if node.root and Path(node.root, "stacks").is_dir()]
    loaded = load.inputs(
        request,
        image=docker.image if docker else "",
        nodes=tuple(node.facts for node in cluster.nodes),
        user_python=node0.user_python.path if node0 and node0.user_python else "",
        local_python=node0.ranks_python if node0 and node0.local else "",
        shares_files=not is_remote,
        common_file=cluster.requirements,
        has_project=has_project,
        left_out=[*inventory_files(Path(cluster.source)), *roots] if has_project or request.project is not None else (),
    )
    measurement = read_measurement(State.of(Path(cluster.source)).folder / MEASURED)
    return request, replace(loaded, cluster=cluster, accelerate=accelerate, docker=docker, measurement=measurement)


class SshTarget(interface.Target):
    """The nodes of an inventory, or this machine if no inventory is named."""

    name = "ssh"

    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        """Return the plan of a request, without a query of any host and without writing files."""
        file = load.accelerate_config(request.accelerate_config) if request.accelerate_config is not None else None
        base = Path(request.runs_dir).absolute()
        request, inputs = read(request, file)
        root = next((node.root for node in inputs.cluster.nodes if not node.local), "")
        local = [str(base), str(TRAIN), str(state_home() / "store")]
        runs, train, store = [f"{root}/{name}" for name in ("runs", "train", "store")] if root else local
        run_paths = run_paths_of(resume, inputs.recipe.name, runs, train=train, store=store, root=root)
        plan = plan_train(request, inputs, run_paths)
        first_steps: list[Step] = []
        if text := inputs.cluster.ssh_config:  # it is not current
            first_steps.append(PutFile(path=str(State.of(Path(inputs.cluster.source)).ssh_config), content=text))
        node0, events = plan.run.node0, base / plan.run.run_id / EVENTS
        # Another node0 than that of the last attempt gets the events that the old one has sent.
        if resume and node0.via and node0.node not in [host.node for host in resume.nodes[:1]] and events.exists():
            first_steps.append(SendFile(nodes=(node0,), source=str(events), path=f"{plan.run.run_dir}/{EVENTS}"))
        return replace(plan, steps=(*first_steps, *plan.steps))

    def check(self, request: interface.CheckRequest) -> Iterator[Finding]:
        """Yield each node whose record is missing or damaged."""
        source = find_inventory(request.inventory)
        state = State.of(source)
        for name in read_inventory(source):
            try:
                if read_record(state.record(name)) is None:
                    hint = f"orch provision {request.inventory}"
                    yield Finding(subject=name, severity="unknown", message="nothing is recorded yet", hint=hint)
            except DamagedRecord as error:
                yield finding_of(error, name)

    def measurement_file(self, request: TrainRequest) -> Path:
        return State.of(find_inventory(request.inventory)).folder / MEASURED

    def start(self, plan: Plan, folder: Path) -> interface.RunHandle:
        return SshHandle(plan.run, folder, earlier=start(plan, folder), stays_connected=True)

    def handle(self, record: RunRecord, folder: Path) -> interface.RunHandle:
        return SshHandle(record, folder)

    def find(self, base: Path, name: str, inventory: str, notify: interface.Notify) -> interface.RunHandle:
        return self.handle(*find.find_run(base, name, inventory, find.query_inventory(inventory), notify))

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> interface.SharedFolder:
        raise RequestError.about("shared-folder-of-nodes")

    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> interface.NodeCommands:
        return on_cluster(inventory, nodes, stack)

    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[interface.LiveNode]:
        return query_inventory(inventory, names)

    def list_runs(self, inventory: str, base: Path) -> interface.RunList:
        return find.list_runs(find.query_inventory(inventory))

    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        return find.clean(inventory, base, dry_run=dry_run)
