"""Read the files that a request for this machine or an inventory names, and plan the run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.files import EVENTS
from orch_node.protocol.precision import AUTO

from orchestrator import load
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import inventory_files
from orchestrator.load.measurements import MEASURED, read_measurement
from orchestrator.load.records import state_of
from orchestrator.model.cluster import Cluster
from orchestrator.paths import TRAIN
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.plan import Plan, SendFile, Step
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.site import Site
from orchestrator.state import state_home
from orchestrator.targets import identity
from orchestrator.targets.ssh.decisions import HostInputs
from orchestrator.targets.ssh.nodes import ssh_config
from orchestrator.targets.ssh.plan import plan_train


def plan(request: TrainRequest, resume: Resume | None = None) -> Plan:
    """Return the plan of a request, without a query of any host and without writing files."""
    file = load.accelerate_config(request.accelerate_config) if request.accelerate_config is not None else None
    unset = file and file.without(nodes=request.nodes, ppn=request.ppn)
    base = Path(request.runs_dir).absolute()
    with unset.named_in_errors() if unset else nullcontext():
        request, inputs = read(request, file)
        plan = plan_train(request, inputs, site_of(resume, inputs.loaded.recipe.name, base, inputs.cluster))
    ssh_config_step = ssh_config(inputs.cluster)
    first_steps: list[Step] = [ssh_config_step] if ssh_config_step else []
    if resume:
        first_steps += events_for_new_node0(plan, base, resume)
    return replace(plan, steps=(*first_steps, *plan.steps))


def events_for_new_node0(plan: Plan, base: Path, resume: Resume) -> tuple[SendFile, ...]:
    """Return the step that gives another node0 than that of the last attempt the events that the old one has sent."""
    node0, events = plan.run.node0, base / plan.run.run_id / EVENTS
    if not node0.via or node0.node in [host.node for host in resume.nodes[:1]] or not events.exists():
        return ()
    return (SendFile(nodes=(node0,), source=str(events), path=f"{plan.run.run_dir}/{EVENTS}"),)


def read(request: TrainRequest, accelerate: AccelerateOptions | None) -> tuple[TrainRequest, HostInputs]:
    """Load the files that a request names.

    Args:
        request: the request.
        accelerate: the options of its configuration of accelerate, if it names one.

    Returns:
        The request, with options that only its configuration of accelerate sets, and the files.
    """
    if accelerate is not None:
        request = with_options(request, accelerate)
    has_image = request.image is not None or request.image_options
    docker = load.docker(request.image, request.image_options, request.inventory) if has_image else None
    cluster = load.cluster(
        request.inventory, request.stack, nodes=request.nodes, exclude=request.exclude, spares=request.spare_nodes
    )
    if request.python is not None:
        from orchestrator.targets.ssh.user_python import with_user_python  # which queries the nodes

        cluster = with_user_python(request, cluster)
    node0 = cluster.nodes[0] if cluster.nodes else None
    is_remote = not all(node.local for node in cluster.nodes)
    has_project = is_remote and not (request.module and docker)
    software = load.RankSoftware(
        image=docker.image if docker else "",
        nodes=tuple(node.facts for node in cluster.nodes),
        user_python=node0.user_python.path if node0 and node0.user_python else "",
        local_python=node0.ranks_python if node0 and node0.local else "",
        shares_files=not is_remote,
        requirements=cluster.requirements,
    )
    loaded = load.inputs(
        request,
        software,
        has_project=has_project,
        left_out=inventory_files(Path(cluster.source)) if has_project or request.project is not None else (),
    )
    return request, HostInputs(
        loaded=loaded,
        cluster=cluster,
        accelerate=accelerate,
        docker=docker,
        measurement=read_measurement(measurement_file(cluster.source)),
    )


def measurement_file(inventory: str) -> Path:
    """Return the file in which `orch bench` stores what it has measured on the nodes of an inventory."""
    return state_of(find_inventory(inventory)).folder / MEASURED


def with_options(request: TrainRequest, options: AccelerateOptions) -> TrainRequest:
    """Return the request with accelerate's values for the options that it does not set."""
    return replace(
        request,
        nodes=request.nodes or options.nodes,
        ppn=request.ppn or options.ppn,
        precision=(options.precision or AUTO) if request.precision == AUTO else request.precision,
    )


def site_of(resume: Resume | None, recipe: str, base: Path, cluster: Cluster) -> Site:
    """Return the folders and the identity of a run."""
    root = next((node.root for node in cluster.nodes if not node.local), None)
    if root:
        return identity.site_of(resume, recipe, f"{root}/runs", train=f"{root}/train", store=f"{root}/store", root=root)
    return identity.site_of(resume, recipe, str(base), train=str(TRAIN), store=str(state_home() / "store"))
