"""Read the files that a request for this machine or an inventory names, and plan the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch_node.protocol.precision import AUTO

from orchestrator import load
from orchestrator.load.inventory import inventory_files
from orchestrator.model.cluster import Cluster
from orchestrator.paths import TRAIN
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.site import Site
from orchestrator.runs.resume import plan_or_resume
from orchestrator.state import state_home
from orchestrator.targets.identity import new_site
from orchestrator.targets.ssh.decisions import HostInputs
from orchestrator.targets.ssh.nodes import ssh_config
from orchestrator.targets.ssh.plan import plan_train


def plan(request: TrainRequest) -> Plan:
    """Return the plan of a request, without a query of any host and without writing files."""
    file = load.accelerate_config(request.accelerate_config) if request.accelerate_config is not None else None
    unset = AccelerateOptions(source="") if file is None else file.without(nodes=request.nodes, ppn=request.ppn)
    with unset.named_in_errors():
        request, inputs = read(request, file)
        site = site_of(inputs.loaded.recipe.name, Path(request.runs_dir).absolute(), inputs.cluster)
        plan = plan_or_resume(request, lambda resume: plan_train(request, inputs, site, resume))
    ssh_config_step = ssh_config(inputs.cluster)
    return replace(plan, steps=(ssh_config_step, *plan.steps)) if ssh_config_step else plan


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
    docker = load.docker(request.image, request.image_options, request.inventory)
    cluster = load.cluster(
        request.inventory, request.stack, nodes=request.nodes, exclude=request.exclude, spares=request.spare_nodes
    )
    if request.python is not None:
        from orchestrator.targets.ssh.user_python import with_user_python  # which queries the nodes

        cluster = with_user_python(request, cluster)
    node0 = cluster.nodes[0] if cluster.nodes else None
    software = load.RankSoftware(
        image=docker.image if docker else "",
        nodes=tuple(node.facts for node in cluster.nodes),
        user_python=node0.user_python.path if node0 and node0.user_python else "",
        local_python=node0.ranks_python if node0 and node0.local else "",
        shares_files=not is_remote(cluster),
        requirements=cluster.requirements,
    )
    loaded = load.inputs(
        request,
        software,
        has_project=is_remote(cluster) and not (request.module and docker),
        left_out=inventory_files(Path(cluster.source)),
    )
    return request, HostInputs(loaded=loaded, cluster=cluster, accelerate=accelerate, docker=docker)


def is_remote(cluster: Cluster) -> bool:
    """Return whether the nodes are other machines."""
    return not all(node.local for node in cluster.nodes)


def with_options(request: TrainRequest, options: AccelerateOptions) -> TrainRequest:
    """Return the request with accelerate's values for the options that it does not set."""
    return replace(
        request,
        nodes=request.nodes or options.nodes,
        ppn=request.ppn or options.ppn,
        precision=(options.precision or AUTO) if request.precision == AUTO else request.precision,
    )


def site_of(recipe: str, base: Path, cluster: Cluster) -> Site:
    """Return the folders and the identity of a new run."""
    root = next((node.root for node in cluster.nodes if not node.local), None)
    if root:
        return new_site(recipe, f"{root}/runs", train=f"{root}/train", store=f"{root}/store", root=root)
    return new_site(recipe, str(base), train=str(TRAIN), store=str(state_home() / "store"))
