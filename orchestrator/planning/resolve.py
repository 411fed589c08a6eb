"""Decide everything that a request leaves open: the only place where a request becomes a Resolved. Pure.

The nodes of a run are either known, with the facts of an inventory, or counted, if a batch system or Kubernetes will
choose them. A target adds only what it alone knows: its nodes and what starts the ranks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orch_node.protocol.cores import default_ranks

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import NodeCount
from orchestrator.model.imports import Imports
from orchestrator.model.layout import Layout, uniform_layout
from orchestrator.model.links import Link
from orchestrator.model.measurement import Measurement
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, hosts, launch
from orchestrator.planning.accelerate_options import ACCELERATE_LAUNCHERS
from orchestrator.planning.measured import Preference, prefer
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.supervision import check_restarts
from orchestrator.stacks.stack import Stack

NO_NODES: Choice[tuple[Node, ...]] = Choice(())
NO_LINKS: Choice[tuple[Link, ...]] = Choice(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files that a request for any target names, loaded.

    Attributes:
        recipe: the recipe or the user's own script, with its project and packages.
        stack: the stack that the ranks use.
        settings: the recipe's settings that the user has set.
        plugins: the backends of third-party packages, by name.
        imports: the modules that the script needs from the nodes, or None if they need no check.
    """

    recipe: Recipe
    stack: Stack
    settings: Mapping[str, Value] = field(default_factory=dict)
    plugins: Mapping[str, Backend] = field(default_factory=dict)
    imports: Imports | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNodes:
    """The nodes of an inventory, whose facts are known.

    Attributes:
        nodes: the nodes with ranks.
        spares: the nodes that replace lost ones.
        measurement: what `orch bench` has measured on these nodes, or None.
    """

    nodes: Choice[tuple[Node, ...]]
    spares: Choice[tuple[Node, ...]] = NO_NODES
    measurement: Measurement | None = None

    @property
    def ppn(self) -> int:
        """Return the ranks on the first node by the rule."""
        return default_ranks(self.nodes.value[0].facts.cores)

    @property
    def count(self) -> int:
        """Return the number of nodes with ranks."""
        return len(self.nodes.value)

    @property
    def with_stack(self) -> tuple[Node, ...]:
        """Return the nodes whose stack is known."""
        return (*self.nodes.value, *self.spares.value)

    @property
    def gpus_by_node(self) -> Mapping[str, int]:
        return {node.name: len(node.facts.gpus) for node in self.with_stack}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedNodes:
    """Nodes that a batch system or Kubernetes will choose.

    Attributes:
        count: the number of nodes with ranks.
        prefix: the beginning of the nodes' names in the layout.
        ppn: the number of ranks on each node.
        threads: the threads of each rank; 0 if they depend on the cores that the job is given.
        placement: how the ranks are placed, for the decision about their number.
        software: what has the libraries of the ranks, with its verb, such as `the nodes have`.
        gpus: the number of GPUs that are requested for each node.
        nodes: placeholders for the nodes.
        with_stack: a placeholder with the facts of the stack, if all nodes share one.
        measurement: what `orch bench` has measured on such nodes, or None.
    """

    count: int
    prefix: str
    ppn: int
    threads: int
    placement: str
    software: str
    gpus: int = 0
    nodes: Choice[tuple[Node, ...]] = NO_NODES
    spares: Choice[tuple[Node, ...]] = NO_NODES
    with_stack: tuple[Node, ...] = ()
    measurement: Measurement | None = None

    @property
    def gpus_by_node(self) -> Mapping[str, int]:
        return {f"each {self.prefix}": self.gpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request in which everything is decided.

    Attributes:
        nodes: the nodes with ranks; placeholders if they are chosen later.
        spares: the nodes that replace lost ones, if they are known.
        layout: the ranks on the nodes.
        launcher: the program that starts the ranks.
        mpi: the MPI whose mpirun starts them; the launcher's decisions explain it.
        stack: the stack, adapted to the backend.
        backend: the backend, adapted to the launcher.
        precision: the precision, or `auto` if the ranks choose it.
        preload: the libraries to preload on every node.
        recipe: the recipe or the user's own script.
        settings: all settings of the recipe.
        links: the network between the nodes, if they are known.
    """

    nodes: Choice[tuple[Node, ...]]
    spares: Choice[tuple[Node, ...]]
    layout: Choice[Layout]
    launcher: str
    mpi: Decision
    stack: Choice[Stack]
    backend: Choice[Backend]
    precision: Choice[str]
    preload: Choice[tuple[str, ...]]
    recipe: Recipe
    settings: Mapping[str, Value]
    links: Choice[tuple[Link, ...]] = NO_LINKS

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the run and its spare nodes."""
        return (*self.nodes.value, *self.spares.value)


def resolve(
    request: TrainRequest,
    inputs: Inputs,
    nodes: KnownNodes | CountedNodes,
    resume: Resume | None = None,
    *,
    launcher: str,
    mpi: Decision,
    contained: bool = False,
) -> Resolved:
    """Decide everything that a request leaves open.

    Args:
        request: the request.
        inputs: the files that it names.
        nodes: the nodes of the run.
        resume: the unfinished run whose next attempt is planned.
        launcher: the program that starts the ranks.
        mpi: the MPI whose mpirun starts them; its value is '' without mpirun.
        contained: whether it starts each rank in a separate container.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    recipe, known_nodes = inputs.recipe, nodes.with_stack if isinstance(nodes, KnownNodes) else ()
    check_restarts(request, nodes.count)
    checks.check_recipe_fits(recipe, inputs.stack)
    if request.script_args:
        checks.check_script_arguments(request.script_args, inputs.stack)
    measurement = None if contained else nodes.measurement
    ppn = request.ppn or nodes.ppn
    preference = prefer(request, measurement, backends=inputs.stack.backends, ppn=ppn) if measurement else Preference()
    name = request.backend or preference.backend
    requested_backend = launch.choose_backend(inputs.stack, nodes.with_stack, name, inputs.plugins)
    stack = checks.fit_stack(inputs.stack, requested_backend, nodes.with_stack)
    backend = launch.adapt_backend(requested_backend, launcher, mpi.value, contained=contained)
    accelerates = launcher in ACCELERATE_LAUNCHERS
    precision = choose_precision(recipe, known_nodes, request, resume, through_accelerate=accelerates)
    if request.ccl_workers:
        checks.check_workers(backend, request.ccl_workers)
    if backend.gpu:
        launch.check_gpus(backend, request.ppn, nodes.gpus_by_node, request.env)
    if request.ipex:
        checks.check_ipex(recipe, stack.value, precision=precision.value)
    reasons = (preference.backend_reason, backend.summary, backend.source and f"a plug-in of {backend.source}")
    software = nodes.software if isinstance(nodes, CountedNodes) else "the image has" if contained else ""
    return Resolved(
        nodes=nodes.nodes,
        spares=nodes.spares,
        layout=choose_layout(request, nodes, preference, on_gpus=backend.gpu),
        launcher=launcher,
        mpi=mpi,
        stack=stack,
        backend=Choice(backend, (Decision("backend", backend.name, "; ".join(filter(None, reasons))),)),
        precision=precision,
        preload=checks.choose_preload(stack.value, nodes.with_stack, software),
        recipe=recipe,
        settings=recipe.settings(request.preset, inputs.settings),
    )


def choose_layout(
    request: TrainRequest, nodes: KnownNodes | CountedNodes, preference: Preference, *, on_gpus: bool
) -> Choice[Layout]:
    """Place the ranks on the nodes' cores, or the same number of ranks on each node that is chosen later.

    Raises:
        PlanError: if there are more ranks than cores, or no rank.
    """
    if isinstance(nodes, KnownNodes):
        ppn, workers = request.ppn or preference.ppn, request.ccl_workers
        reason = preference.ppn_reason if nodes.measurement else None
        return hosts.choose_layout(nodes.nodes.value, ppn, workers, on_gpus=on_gpus, measured=reason)
    if nodes.ppn < 1:
        raise PlanError(f"--ppn {nodes.ppn}: a node needs at least one rank.", hint="Use --ppn 1 or more.")
    layout = uniform_layout(prefix=nodes.prefix, nodes=nodes.count, ppn=nodes.ppn, threads=nodes.threads)
    return Choice(layout, (Decision(topic="ranks", value=str(layout.world_size), reason=nodes.placement),))


def count_nodes(request: TrainRequest, default: int | None, *, limit: int, hint: str) -> int:
    """Return the number of nodes, for a target that cannot choose nodes by their names.

    Args:
        request: the request.
        default: the number without --nodes; None if the option is required.
        limit: the largest number.
        hint: how to choose nodes on this target.

    Raises:
        PlanError: if --nodes is missing, out of range or a pattern.
    """
    nodes = request.nodes or (NodeCount(default) if default is not None else None)
    if not isinstance(nodes, NodeCount) or not 1 <= nodes.number <= limit:
        value = f"not --nodes {nodes}" if nodes else "and --nodes is missing"
        raise PlanError(f"--on {request.on} needs a number of nodes from 1 to {limit}, {value}.", hint=hint)
    return nodes.number
