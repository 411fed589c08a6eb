"""Decide the nodes, software, layout and settings of a training run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.imports import Imports
from orchestrator.model.layout import Layout
from orchestrator.model.links import Link
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, fabrics, hosts, launch
from orchestrator.planning.accelerate_options import ACCELERATE_LAUNCHERS, AccelerateOptions
from orchestrator.planning.containers import Docker
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.training import Training, resolve_training
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh import container_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files and folders that a request names, loaded.

    Attributes:
        settings: the values of `--set`.
        plugins: the backends of third-party packages, by name.
        accelerate: the user's configuration of accelerate.
        imports: the modules that the script needs from the nodes, or None if they need no check.
    """

    cluster: Cluster
    recipe: Recipe
    stack: Stack
    settings: Mapping[str, Value] = field(default_factory=dict)
    plugins: Mapping[str, Backend] = field(default_factory=dict)
    accelerate: AccelerateOptions | None = None
    docker: Docker | None = None
    imports: Imports | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The software that the nodes run.

    Attributes:
        mpi: the MPI implementation; the launcher's decisions explain it.
    """

    launcher: str
    mpi: Decision
    docker: Choice[Docker | None]
    stack: Choice[Stack]
    backend: Choice[Backend]
    precision: Choice[str]
    preload: Choice[tuple[str, ...]]

    @property
    def image_starts_ranks(self) -> bool:
        """Return whether the container image starts its ranks and chooses their backend."""
        return container_steps.starts_ranks(self.docker.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request in which everything is decided."""

    nodes: Choice[tuple[Node, ...]]
    spares: Choice[tuple[Node, ...]]
    links: Choice[tuple[Link, ...]]
    layout: Choice[Layout]
    software: Software
    training: Training

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the run and its spare nodes."""
        return (*self.nodes.value, *self.spares.value)


def resolve(request: TrainRequest, inputs: Inputs, resume: Resume | None = None) -> Resolved:
    """Decide everything that a request leaves open.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    nodes, spares = hosts.choose_nodes(inputs.cluster), hosts.choose_spares(inputs.cluster)
    all_nodes = (*nodes.value, *spares.value)
    links = hosts.choose_links(all_nodes)
    software = choose_software(request, inputs, all_nodes, resume)
    fabric_use = fabrics.FabricUse(
        nodes=all_nodes,
        backend=software.backend.value,
        contained=software.docker.value is not None,
        spares=len(spares.value),
    )
    links = fabrics.choose_fabric(links, inputs.cluster, request.fabric, fabric_use)
    layout = choose_layout(request, nodes.value, software)
    return Resolved(
        nodes=nodes,
        spares=spares,
        links=links,
        layout=layout,
        software=software,
        training=resolve_training(
            request,
            inputs.recipe,
            inputs.settings,
            stack=software.stack.value,
            backend=software.backend.value,
            precision=software.precision.value,
            layout=layout.value,
        ),
    )


def choose_software(request: TrainRequest, inputs: Inputs, nodes: tuple[Node, ...], resume: Resume | None) -> Software:
    """Choose the launcher, stack, backend and precision, or raise PlanError if they do not fit."""
    checks.check_recipe_fits(inputs.recipe, inputs.stack)
    checks.check_script_arguments(request.script_args, inputs.stack)
    launcher = request.launcher or DEFAULT
    launch.check_launcher(launcher, inputs.accelerate, request.mpi)
    mpi = launch.choose_mpi(inputs.cluster, inputs.stack, request.mpi)
    docker = container_steps.choose_docker(request, launcher, inputs.docker)
    stack, backend = choose_stack(
        request, inputs, nodes, RankStart(launcher=launcher, mpi=mpi.value, docker=docker.value)
    )
    return Software(
        launcher=launcher,
        mpi=mpi,
        docker=docker,
        stack=stack,
        backend=backend,
        precision=choose_precision(
            inputs.recipe, nodes, request, resume, through_accelerate=launcher in ACCELERATE_LAUNCHERS
        ),
        preload=choose_preload(stack.value, nodes, docker.value),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """The launcher, the MPI and the container that the ranks are started with."""

    launcher: str
    mpi: str
    docker: Docker | None


def choose_stack(
    request: TrainRequest, inputs: Inputs, nodes: tuple[Node, ...], start: RankStart
) -> tuple[Choice[Stack], Choice[Backend]]:
    """Return the stack and the backend, adapted to each other and to the launcher.

    Raises:
        PlanError: if the nodes do not have the stack or cannot use the backend.
    """
    image_starts_ranks = container_steps.starts_ranks(start.docker)
    requested_backend = container_steps.NO_BACKEND if image_starts_ranks else request.backend
    selected_backend = launch.choose_backend(inputs.stack, nodes, requested_backend, inputs.plugins)
    stack = checks.fit_stack(inputs.stack, selected_backend, nodes)
    backend = launch.adapt_backend(selected_backend, start.launcher, start.mpi, contained=start.docker is not None)
    return stack, Choice(backend) if image_starts_ranks else launch.explain_backend(backend)


def choose_preload(stack: Stack, nodes: tuple[Node, ...], docker: Docker | None) -> Choice[tuple[str, ...]]:
    if docker is None:
        return checks.choose_preload(stack, nodes)
    if docker.starts_ranks:
        return Choice(())
    return checks.defer_preload(stack, "the image has")


def choose_layout(request: TrainRequest, nodes: tuple[Node, ...], software: Software) -> Choice[Layout]:
    """Place the ranks on the nodes' cores.

    Raises:
        PlanError: if there are more ranks than cores, or the backend has no workers.
    """
    workers = request.ccl_workers
    checks.check_workers(software.backend.value, workers)
    if software.image_starts_ranks:
        layout = hosts.choose_layout(nodes, 1, workers).value
        return Choice(layout, container_steps.explain_image_ranks(request))
    return hosts.choose_layout(nodes, request.ppn, workers)
