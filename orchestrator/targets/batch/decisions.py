"""Decide everything about a job that its script depends on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orch_node.protocol.slurm import LocalStack

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.launchers import LAUNCHERS
from orchestrator.model.cluster import Facts, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import NodeCount, NodePattern
from orchestrator.model.layout import Layout, uniform_layout
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, launch
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.supervision import check_restarts
from orchestrator.planning.training import Training, resolve_training
from orchestrator.stacks.stack import Stack
from orchestrator.targets.batch.allocation import Allocation
from orchestrator.targets.batch.image import Image, choose_image
from orchestrator.targets.batch.settings import MEMORY, SIZES, SlurmSettings

SRUN = "srun"
LAUNCHER_NAMES = (SRUN, *LAUNCHERS)
MPI = ("intel", "mpich")  # Their hydra can start processes with srun; the wheel of Open MPI supports only ssh.
MAX_NODES = 10_000
PMI = ("auto", "none", "pmi2", "pmix")
NODE_PREFIX = "node"  # The prefix of placeholders for nodes that Slurm has not chosen yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The contents of the files that a request names, and of the host's facts.

    Attributes:
        recipe: the recipe to train.
        stack: the stack that the ranks use.
        slurm: the settings for Slurm.
        facts: the facts of the host with Slurm's programs and of its stack, which all nodes see.
        python: the interpreter that starts the run.
        local: the copy of the stack on each node's disk that the ranks use; None for the shared stack.
        settings: the recipe's settings that the user has set.
        plugins: the backends of plug-ins, by name.
    """

    recipe: Recipe
    stack: Stack
    slurm: SlurmSettings
    facts: Facts
    python: str
    local: LocalStack | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    plugins: Mapping[str, Backend] = field(default_factory=dict)

    @property
    def ranks_python(self) -> str:
        """Return the interpreter of the ranks on the nodes."""
        return f"{self.local.folder}/bin/python" if self.local else self.python


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with all choices made.

    Attributes:
        slurm: the settings for Slurm, with the size of the job.
        nodes: the nodes with ranks, as placeholders until Slurm chooses them.
        launcher: the program that starts the ranks.
        mpi: the MPI implementation whose mpirun starts the ranks; its value is '' without mpirun.
        layout: the ranks on the nodes.
        stack: the stack, adapted to the backend.
        backend: the backend, adapted to the launcher.
        precision: the precision of the training.
        preload: the libraries to preload.
        image: the image that holds the ranks, if any.
        training: the settings of the training.
    """

    slurm: SlurmSettings
    nodes: tuple[Node, ...]
    launcher: str
    mpi: Decision
    layout: Choice[Layout]
    stack: Choice[Stack]
    backend: Choice[Backend]
    precision: Choice[str]
    preload: Choice[tuple[str, ...]]
    image: Choice[Image | None]
    training: Training


def resolve(request: TrainRequest, inputs: Inputs, resume: Resume | None = None) -> Resolved:
    """Return a request with all choices made.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    count = check_numbers(request, inputs.slurm.held)
    inputs.slurm.check()
    launcher, mpi = choose_launcher(request, inputs)
    nodes = tuple(placeholder_node(number, inputs) for number in range(count))
    image = choose_image(inputs.slurm.image, launcher)
    known_nodes = nodes[:0] if image.value else nodes[:1]  # The libraries of an image are unknown until its ranks run.
    checks.check_recipe_fits(inputs.recipe, inputs.stack)
    checks.check_script_arguments(request.script_args, inputs.stack)
    backend_choice = launch.choose_backend(inputs.stack, known_nodes, request.backend, inputs.plugins)
    stack = checks.fit_stack(inputs.stack, backend_choice, known_nodes)
    contained = image.value is not None
    adapted = launch.adapt_backend(backend_choice, launcher, mpi.value, contained=contained)
    backend = launch.explain_backend(adapted)
    precision = choose_precision(inputs.recipe, (), request, resume)
    layout = choose_layout(request, count, inputs.slurm)
    return Resolved(
        slurm=with_size(inputs.slurm),
        nodes=nodes,
        launcher=launcher,
        mpi=mpi,
        layout=layout,
        stack=stack,
        backend=backend,
        precision=precision,
        preload=checks.defer_preload(stack.value, f"if the {'image has' if contained else 'nodes have'} them"),
        image=image,
        training=resolve_training(
            request,
            inputs.recipe,
            inputs.settings,
            stack=stack.value,
            backend=backend.value,
            precision=precision.value,
            layout=layout.value,
        ),
    )


def check_numbers(request: TrainRequest, held: Allocation | None = None) -> int:
    """Return the number of nodes with ranks; the default is all of a held allocation, otherwise 1.

    Raises:
        PlanError: if a number is invalid, or does not fit the allocation.
    """
    default = len(held.node_cpus) - request.spare_nodes if held else 1
    nodes = request.nodes or NodeCount(max(1, default))
    if isinstance(nodes, NodePattern) or not 1 <= nodes.number <= MAX_NODES:
        raise PlanError(
            f"--on slurm needs the number of nodes, not --nodes {nodes}.",
            hint="Example: --nodes 4. --slurm nodelist=NAMES selects specific nodes.",
        )
    check_restarts(request)
    if held is not None:
        held.check(nodes.number + request.spare_nodes, request.ppn or 1)
    return nodes.number


def choose_launcher(request: TrainRequest, inputs: Inputs) -> tuple[str, Decision]:
    """Return the launcher, and the decision about the MPI implementation.

    Raises:
        PlanError: if the launcher or the MPI implementation does not work on Slurm.
    """
    name = request.launcher or SRUN
    if name not in LAUNCHER_NAMES:
        raise PlanError(
            f"--launcher {name} does not run on Slurm.",
            hint=did_you_mean(name, LAUNCHER_NAMES) or f"Use one of {', '.join(LAUNCHER_NAMES)}.",
        )
    if inputs.slurm.pmi not in PMI:
        raise PlanError(f"--slurm pmi={inputs.slurm.pmi}: expected one of {', '.join(PMI)}.")
    if name in (SRUN, "torchrun"):
        if request.mpi:
            raise PlanError(
                f"--mpi {request.mpi}: --launcher {name} starts the ranks without mpirun.",
                hint="Add --launcher mpirun, or leave --mpi out.",
            )
        return name, Decision(topic="mpi", value="")
    value = request.mpi or inputs.stack.mpi
    if value not in MPI:
        raise PlanError(
            f"--mpi {value}: on Slurm, mpirun must be that of {' or '.join(MPI)}.",
            hint="Use --mpi intel, or --launcher srun, which needs no mpirun.",
        )
    reason = "requested" if request.mpi else f"stack '{inputs.stack.name}'"
    return name, Decision(topic="mpi", value=value, reason=reason)


def placeholder_node(number: int, inputs: Inputs) -> Node:
    """Return a placeholder for a node that Slurm has not chosen yet; its stack is the shared one."""
    return Node(
        name=f"{NODE_PREFIX}-{number}",
        address=f"{NODE_PREFIX}-{number}",
        python=inputs.ranks_python,
        facts=inputs.facts,
        via=("srun",),
        repair="`orch setup` of the installation whose Python the nodes use",
    )


def with_size(slurm: SlurmSettings) -> SlurmSettings:
    """Return the settings with a request for whole nodes, unless an option limits the share of a node.

    `--exclusive` alone gives all cores of a node, but only the site's default memory. An allocation
    that is held has its size already.
    """
    if slurm.held:
        return replace(slurm, sbatch={}, sources={})
    added = {}
    if not any(name in slurm.sbatch for name in SIZES):
        added["exclusive"] = ("", "the default; cpus-per-task=N shares nodes")
    exclusive = added or slurm.sbatch.get("exclusive") == ""
    if exclusive and not any(name in slurm.sbatch for name in MEMORY):
        added["mem"] = ("0", "all memory of the nodes")
    values = {name: value for name, (value, _) in added.items()}
    reasons = {name: reason for name, (_, reason) in added.items()}
    return replace(slurm, sbatch={**slurm.sbatch, **values}, sources={**slurm.sources, **reasons})


def choose_layout(request: TrainRequest, count: int, slurm: SlurmSettings) -> Choice[Layout]:
    """Return a layout with the same number of ranks on each node; the job assigns their cores.

    Raises:
        PlanError: if --ppn or cpus-per-task is invalid.
    """
    ppn = 1 if request.ppn is None else request.ppn
    if ppn < 1:
        raise PlanError(f"--ppn {ppn}: expected 1 or more.")
    threads = slurm.number("cpus-per-task") or 0  # 0: the threads depend on the cores of the job.
    layout = uniform_layout(prefix=NODE_PREFIX, nodes=count, ppn=ppn, threads=threads)
    cores = "equal shares of the cores that the job is given"
    reason = f"{ppn} on each node{'' if request.ppn else ', the default of --ppn'}; {cores}"
    return Choice(layout, (Decision(topic="ranks", value=str(layout.world_size), reason=reason),))
