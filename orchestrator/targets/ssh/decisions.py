"""Decide the nodes of a training run, their network and what starts the ranks on them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Cluster
from orchestrator.model.decision import Choice
from orchestrator.model.links import Link
from orchestrator.planning import fabrics, hosts, launch
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.containers import Docker
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import Inputs, KnownNodes, RankStart, Resolved, resolve
from orchestrator.targets.ssh import container_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInputs:
    """The files and the cluster from which a run on hosts is planned.

    Attributes:
        loaded: the files that the request names.
        cluster: the hosts of the inventory.
        accelerate: the user's configuration of accelerate.
        docker: the containers of the ranks, or None.
    """

    loaded: Inputs
    cluster: Cluster
    accelerate: AccelerateOptions | None = None
    docker: Docker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedHosts:
    """A request in which everything is decided, also the network between the hosts."""

    resolved: Resolved
    links: Choice[tuple[Link, ...]]


def resolve_hosts(request: TrainRequest, inputs: HostInputs, resume: Resume | None = None) -> ResolvedHosts:
    """Decide everything that a request leaves open.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    cluster, docker = inputs.cluster, inputs.docker
    nodes = KnownNodes(nodes=hosts.choose_nodes(cluster), spares=hosts.choose_spares(cluster))
    links = hosts.choose_links(nodes.with_stack)
    launcher = request.launcher or DEFAULT
    launch.check_launcher(launcher, inputs.accelerate, request.mpi)
    mpi = launch.choose_mpi(cluster, inputs.loaded.stack, request.mpi)
    start = RankStart(launcher=launcher, mpi=mpi, contained=docker is not None)
    if docker:
        container_steps.check_docker(request, launcher, docker)
    if docker and docker.starts_ranks:
        resolved = resolve_image(request, inputs.loaded, nodes, start, resume)
    else:
        resolved = resolve(request, inputs.loaded, nodes, start, resume)
    use = fabrics.FabricUse(
        nodes=nodes.with_stack,
        backend=resolved.backend.value,
        contained=start.contained,
        spares=len(nodes.spares.value),
    )
    return ResolvedHosts(resolved=resolved, links=fabrics.choose_fabric(links, cluster, request.fabric, use))


def resolve_image(
    request: TrainRequest, inputs: Inputs, nodes: KnownNodes, start: RankStart, resume: Resume | None
) -> Resolved:
    """Decide everything for an image that starts its ranks and chooses their backend itself."""
    resolved = resolve(replace(request, ppn=1, backend=container_steps.NO_BACKEND), inputs, nodes, start, resume)
    return replace(
        resolved,
        layout=Choice(resolved.layout.value, container_steps.explain_image_ranks(request, resolved.nodes.value)),
        backend=Choice(resolved.backend.value),
        preload=Choice(()),
    )
