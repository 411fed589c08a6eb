"""Everything that is decided of a run before its command is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator import accelerate_file, choices, choose_launch, network, plan_docker
from orchestrator.backend import Backend
from orchestrator.cluster import Cluster, Node
from orchestrator.layout import Layout, lay_out
from orchestrator.network import Link
from orchestrator.plan import Decision
from orchestrator.recipe import Recipe, Value
from orchestrator.stack import Stack
from orchestrator.train_request import TrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`preload`: libraries that the nodes have; `settings`: the recipe's; `own_start`: the image
    starts its ranks itself; `names`: what tells two runs of one recipe apart."""

    nodes: tuple[Node, ...]
    spares: tuple[Node, ...]
    links: tuple[Link, ...]
    layout: Layout
    stack: Stack
    backend: Backend
    mpi: Decision
    precision: Decision
    preload: tuple[str, ...]
    tell_preload: Decision
    settings: Mapping[str, Value]
    own_start: bool
    names: tuple[str, ...]

    @property
    def everywhere(self) -> tuple[Node, ...]:
        return (*self.nodes, *self.spares)


def choose(
    request: TrainRequest,
    *,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    plugins: Mapping[str, Backend],
) -> Chosen:
    """Raises PlanError, RequestError."""
    nodes, spares = cluster.chosen(), cluster.spares()
    everywhere = (*nodes, *spares)
    links = network.links(everywhere)
    choices.check_recipe_fits(recipe, stack)
    choose_launch.check_launcher(request.launcher, request.wishes)
    mpi = choose_launch.choose_mpi(cluster, stack, request.mpi)
    docker, own_start = request.docker, plan_docker.check(request)
    stack, backend = stack_and_backend(request, everywhere, stack, mpi, plugins)
    precision = choices.choose_precision(
        recipe,
        everywhere,
        asked=request.precision,
        allow_slow=request.allow_slow_bf16,
        launched=request.launcher in accelerate_file.WITH,
    )
    ppn = 1 if own_start else request.ppn
    layout = lay_out(nodes, ppn, choices.choose_workers(backend, request.ccl_workers))
    if request.ipex:
        choices.check_ipex(recipe, stack, precision=precision.value, ranks=layout.world_size)
    preload, tell_preload = (
        choices.leave_preload(stack) if docker else choices.choose_preload(stack, everywhere)
    )
    image = (docker.image, docker.start) if docker else ()
    return Chosen(
        nodes=nodes, spares=spares, links=links, layout=layout, stack=stack, backend=backend,
        mpi=mpi, precision=precision, preload=preload, tell_preload=tell_preload,
        settings=recipe.settings(request.preset, request.settings), own_start=own_start,
        names=(stack.name, backend.name, precision.value, *image),
    )  # fmt: skip


def stack_and_backend(
    request: TrainRequest,
    nodes: tuple[Node, ...],
    stack: Stack,
    mpi: Decision,
    plugins: Mapping[str, Backend],
) -> tuple[Stack, Backend]:
    """The backend with what the launcher makes necessary, and the stack as it wants it, which all
    nodes have. Raises PlanError."""
    docker = request.docker
    own_start = docker is not None and docker.starts_ranks
    asked = plan_docker.NO_BACKEND if own_start else request.backend
    chosen = choose_launch.choose_backend(stack, nodes, asked, plugins)
    stack = stack.for_backend(chosen.name)
    for node in nodes:
        stack.check(node)
    return stack, choose_launch.below(
        chosen, request.launcher, mpi.value, contained=docker is not None
    )
