"""Decide everything that a request leaves open: the only place where a request becomes a Resolved. Pure.

The nodes of a run are either known, with the facts of an inventory, or counted, if a batch system or Kubernetes will
choose them. A target adds only what it alone knows: its nodes and what starts the ranks there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Cluster, Layout, Link, Node, Selection, lay_out, links, uniform_layout
from orchestrator.model.decision import GPUS, Choice, Decision
from orchestrator.model.facts import describe_gpus
from orchestrator.model.hosts import fold, grouped
from orchestrator.model.measurement import Measurement
from orchestrator.model.printable import counted
from orchestrator.model.process_group import Backend
from orchestrator.model.project import Imports
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import software
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.containers import Docker
from orchestrator.planning.launchers import ACCELERATE_LAUNCHERS
from orchestrator.planning.measured import Preference, prefer
from orchestrator.planning.request import RunPaths, TrainRequest, flag
from orchestrator.stacks.stack import TORCH, Stack

NO_NODES: Choice[tuple[Node, ...]] = Choice(())
NO_LINKS: Choice[tuple[Link, ...]] = Choice(())
NO_CLUSTER = Cluster(name="", source="", selection=Selection(hosts=(), reason=""), nodes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files that a request for any target names, loaded.

    Attributes:
        recipe: the recipe or the user's own script, with its project and packages.
        stack: the stack that the ranks use.
        settings: the recipe's settings that the user has set.
        plugins: the backends of third-party packages, by name.
        imports: the modules that the script needs from the nodes, or None if they need no check.
        cluster: the hosts of the inventory; none for other targets.
        accelerate: the user's configuration of accelerate.
        docker: the containers of the ranks on hosts, or None.
        measurement: what `orch bench` has measured on the hosts, or None.
    """

    recipe: Recipe
    stack: Stack
    settings: Mapping[str, Value] = field(default_factory=dict)
    plugins: Mapping[str, Backend] = field(default_factory=dict)
    imports: Imports | None = None
    cluster: Cluster = NO_CLUSTER
    accelerate: AccelerateOptions | None = None
    docker: Docker | None = None
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNodes:
    """The nodes of a run: those of an inventory, or nodes that a batch system or Kubernetes will choose.

    Attributes:
        count: the number of nodes with ranks.
        ppn: the number of ranks on the first node.
        gpus_by_node: the number of GPUs that each node has, or that are requested for each.
        nodes: the nodes with ranks; placeholders if they are chosen later.
        spares: the nodes that replace lost ones, if they are known.
        with_stack: the nodes whose stack is known; one is enough if all nodes share it.
        layout: the ranks on nodes that are chosen later; None if the cores of the nodes are known.
        software: what has the libraries of the ranks, with its verb, such as `the nodes have`; '' for known nodes.
        measurement: what `orch bench` has measured on such nodes, or None.
    """

    count: int
    ppn: int
    gpus_by_node: Mapping[str, int]
    nodes: Choice[tuple[Node, ...]] = NO_NODES
    spares: Choice[tuple[Node, ...]] = NO_NODES
    with_stack: tuple[Node, ...] = ()
    layout: Choice[Layout] | None = None
    software: str = ""
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request in which everything is decided.

    Attributes:
        request: the request.
        run_paths: the identity and the folders of the run, and the run whose next attempt is planned.
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

    request: TrainRequest
    run_paths: RunPaths
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

    @property
    def output_dir(self) -> str | None:
        """Return the script's --output_dir; None for a user's own script."""
        return None if self.recipe.own_script else f"{self.run_paths.run_dir}/output"


def resolve(
    request: TrainRequest,
    inputs: Inputs,
    nodes: RunNodes,
    run_paths: RunPaths,
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
        run_paths: the identity and the folders of the run.
        launcher: the program that starts the ranks.
        mpi: the MPI whose mpirun starts them; its value is '' without mpirun.
        contained: whether it starts each rank in a separate container.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    recipe, known_nodes = inputs.recipe, () if nodes.layout else nodes.with_stack
    check_restarts(request, nodes.count)
    software.check_recipe_fits(recipe, inputs.stack, request.script_args)
    measured = None if contained else nodes.measurement
    preference = prefer(request, measured, inputs.stack.backends, nodes.ppn) if measured else Preference()
    backend_name = request.backend or preference.backend
    requested = software.choose_backend(inputs.stack, nodes.with_stack, backend_name, inputs.plugins)
    stack = software.fit_stack(inputs.stack, requested, nodes.with_stack)
    backend = software.adapt_backend(requested, launcher, mpi.value, contained=contained)
    if not (accelerates := launcher in ACCELERATE_LAUNCHERS) and inputs.accelerate:
        raise PlanError.about("accelerate-launcher", source=inputs.accelerate.source, launcher=launcher)
    precision = software.choose_precision(recipe, known_nodes, request, run_paths.resume, by_accelerate=accelerates)
    if request.ccl_workers and not backend.workers:
        raise PlanError.about("workers-of-backend", workers=request.ccl_workers, backend=backend)
    if backend.gpu:
        software.check_gpus(backend, request.ppn, nodes.gpus_by_node, request.env)
    if request.ipex:
        software.check_ipex(recipe, stack.value, precision=precision.value)
    reasons = (preference.backend_reason, backend.summary, backend.source and f"a plug-in of {backend.source}")
    owner = nodes.software or ("the image has" if contained else "")
    return Resolved(
        request=request,
        run_paths=run_paths,
        nodes=nodes.nodes,
        spares=nodes.spares,
        layout=nodes.layout or choose_layout(request, nodes, preference, on_gpus=backend.gpu),
        launcher=launcher,
        mpi=mpi,
        stack=stack,
        backend=Choice(backend, (Decision("backend", backend.name, "; ".join(filter(None, reasons))),)),
        precision=precision,
        preload=software.choose_preload(stack.value, nodes.with_stack, owner),
        recipe=recipe,
        settings=recipe.settings(request.preset, inputs.settings),
    )


def check_restarts(request: TrainRequest, nodes: int) -> None:
    """Check the options of restarts, for a run on this number of nodes.

    Raises:
        PlanError: if one is out of range, or has no effect without --max-restarts.
    """
    for name in ("stall_timeout", "max_restarts", "spare_nodes", "min_nodes"):
        value, option = getattr(request, name), flag(name)
        if not 0 <= value < math.inf:
            raise PlanError(f"{option} {value:g}: expected 0 or more.", hint=f"Omit {option}, or use 0 to turn it off.")
    if request.min_nodes > nodes:
        raise PlanError.about("too-few-nodes", min_nodes=request.min_nodes, nodes=counted(nodes, "node"), count=nodes)
    if request.min_nodes and not request.max_restarts:
        raise PlanError.about("no-restarts", flag="--min-nodes", purpose="nodes are left out")
    if request.spare_nodes and not request.max_restarts:
        raise PlanError.about("no-restarts", flag="--spare-nodes", purpose="a spare node replaces another")


def later_nodes(prefix: str, count: int, *, ppn: int, gpus: int, threads: int, reason: str, **fields: Any) -> RunNodes:
    """Return nodes that are chosen later, with the same number of ranks on each.

    Args:
        prefix: the beginning of the nodes' names in the layout.
        count: the number of nodes.
        ppn: the number of ranks on each node.
        gpus: the number of GPUs that are requested for each.
        threads: the threads of each rank; 0 if they depend on the cores that the job is given.
        reason: how the ranks are placed.
        fields: the other fields of RunNodes.

    Raises:
        PlanError: if there is no rank.
    """
    if ppn < 1:
        raise PlanError(f"--ppn {ppn}: a node needs at least one rank.", hint="Use --ppn 1 or more.")
    layout = uniform_layout(prefix=prefix, nodes=count, ppn=ppn, threads=threads)
    choice = Choice(layout, (Decision("ranks", str(layout.world_size), reason),))
    return RunNodes(count=count, ppn=ppn, gpus_by_node={f"each {prefix}": gpus}, layout=choice, **fields)


def choose_layout(request: TrainRequest, nodes: RunNodes, preference: Preference, *, on_gpus: bool) -> Choice[Layout]:
    """Place the ranks on the nodes' cores.

    Raises:
        PlanError: if there are more ranks than cores, or no rank.
    """
    ppn = request.ppn or preference.ppn
    layout = lay_out(nodes.nodes.value, ppn, request.ccl_workers, on_gpus=on_gpus)
    default = "one for each GPU" if on_gpus else "one for each NUMA node"
    reason = f"{ppn} on each node, {preference.ppn_reason or 'as requested'}" if ppn else default
    places_by_node = layout.by_node()
    counts = {node: len(rank_places) for node, rank_places in places_by_node.items()}
    if len(set(counts.values())) > 1:
        reason = f"{reason}: {describe_values(counts)}"
    if ppn is None and nodes.measurement is None and not on_gpus and all(map(is_measured_kind, nodes.nodes.value)):
        reason = f"{reason}; {MEASURED_SPLIT}"
    decisions = [Decision(topic="ranks", value=str(layout.world_size), reason=reason)]
    threads = {node: rank_places[0].threads for node, rank_places in places_by_node.items()}
    if len(set(threads.values())) > 1:
        slowest = fold(node for node, count in threads.items() if count == min(threads.values()))
        cost = f"the nodes' cores differ; every step waits for {slowest}, --exclude leaves it out"
        decisions.append(Decision(topic="threads of a rank", value=describe_values(threads), reason=cost))
    return Choice(layout, tuple(decisions))


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
    nodes = default if request.nodes is None else request.nodes
    if not isinstance(nodes, int) or not 1 <= nodes <= limit:
        value = "and --nodes is missing" if nodes is None else f"not --nodes {nodes}"
        raise PlanError(f"--on {request.on} needs a number of nodes from 1 to {limit}, {value}.", hint=hint)
    return nodes


# Measured on 16 cores of one Xeon with AMX, with the same samples per step of all ranks together, by gloo:
# docs/explanation/performance.md. The number of ranks also decides how many samples a step has, so it stays the user's
# choice. Other machines were not measured.
MEASURED_CORES, MEASURED_FLAG = 16, "amx_bf16"
MEASURED_SPLIT = "4 ranks of 4 cores trained BERT-base in BF16 1.46 times as fast as 1 of 16 on such a node: --ppn 4"


def choose_links(nodes: tuple[Node, ...]) -> Choice[tuple[Link, ...]]:
    """Return the interface of every node; raise PlanError if it cannot be determined."""
    node_links = links(nodes)
    # One decision per reason, with the interfaces and the nodes that have each.
    by_reason = grouped((link.reason, (link.interface, link.node)) for link in node_links)
    decisions = (
        Decision("network", "; ".join(f"{name} on {fold(names)}" for name, names in grouped(links_of).items()), reason)
        for reason, links_of in by_reason.items()
    )
    return Choice(node_links, tuple(decisions))


def is_measured_kind(node: Node) -> bool:
    """Return whether a node is like the one on which splits of its cores were measured."""
    facts = node.facts
    return len(facts.cores) == MEASURED_CORES and len(facts.numa_nodes) == 1 and MEASURED_FLAG in facts.flags


def describe_values(values: Mapping[str, int]) -> str:
    groups = grouped((value, name) for name, value in values.items())
    return ", ".join(f"{value} on {fold(names)}" for value, names in groups.items())


def gpu_decisions(nodes: tuple[Node, ...], backend: Backend) -> Iterator[Decision]:
    """Yield the GPUs of the nodes that have some, and whether the backend connects them."""
    kinds = grouped((describe_gpus(node.facts.gpus), node.name) for node in nodes if node.facts.gpus)
    drivers = {gpu.driver for node in nodes for gpu in node.facts.gpus if gpu.driver}
    listing = "; ".join(f"{kind} on {'each of ' * (len(names) > 1)}{fold(names)}" for kind, names in kinds.items())
    use = "each rank runs on cores near its GPU" if backend.gpu else "--backend nccl connects ranks on GPUs"
    reason = "; ".join([*(f"driver {driver}" for driver in sorted(drivers)), use])
    if kinds:
        yield Decision(topic=GPUS, value=listing, reason=reason)


def torch_decisions(nodes: tuple[Node, ...]) -> Iterator[Decision]:
    """Yield the nodes with each build of torch, if there are several builds of one version."""
    builds = grouped((node.facts.packages.get(TORCH, "none"), node.name) for node in nodes)
    listing = "; ".join(f"{build} on {fold(names)}" for build, names in sorted(builds.items()))
    reason = "different builds of one version: they can train together, but may round differently"
    if len(builds) > 1:
        yield Decision(topic="torch", value=listing, reason=reason)


def python_decisions(node0: Node) -> Iterator[Decision]:
    """Yield the user's interpreter, its versions, what orch adds to it, and warnings about its packages."""
    python = node0.user_python
    if python is None:
        return
    reason = f"--python: Python {node0.facts.python}, torch {node0.facts.packages[TORCH]}"
    added = "; the stack's bindings for ccl are added" if python.bindings else ""
    yield Decision(topic="python", value=python.path, reason=f"{reason}{added}")
    for item in python.mismatches:
        yield Decision(topic="warning", value=item.message, reason=f"{item.evidence}; {item.hint}")


def idle_core_decisions(nodes: tuple[Node, ...], layout: Layout) -> tuple[Decision, ...]:
    """Return how many physical cores no rank uses, because they cannot be divided evenly, if there are any."""
    idle = {node.name: len(node.facts.cores) for node in nodes}
    for rank_place in layout.rank_places:
        idle[rank_place.node] -= len(rank_place.cpus) + len(rank_place.worker_cpus)
    return tuple(
        Decision("idle", f"{counted(count, 'core')} of {fold(names)}", "no equal share of a NUMA node")
        for count, names in grouped((count, name) for name, count in idle.items()).items()
        if count
    )
