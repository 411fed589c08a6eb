"""Everything that is decided of a job before its script is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orch_node.protocol.slurm import LocalStack

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.launchers import LAUNCHERS
from orchestrator.model.cluster import Facts, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.layout import Layout, uniform_layout
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, launch
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.training import Training
from orchestrator.stacks.stack import Stack
from orchestrator.targets.slurm.allocation import Allocation
from orchestrator.targets.slurm.image import Image, choose_image
from orchestrator.targets.slurm.settings import MEMORY, SIZES, SlurmSettings

SRUN = "srun"
STARTERS = (SRUN, *LAUNCHERS)
MPI = ("intel", "mpich")  # whose hydra starts by srun; Open MPI's wheel knows ssh alone
MOST_NODES = 10_000
PMI = ("auto", "none", "pmi2", "pmix")
WORD = "node"  # what the nodes of a job are called before Slurm has chosen them


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a request names, as read from files. `facts`: of the host with Slurm's programs, and of
    the stack, which all nodes see there. `python`: that starts the run; `local`: the stack of the
    ranks, where it is on each node's own disk."""

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
        return f"{self.local.folder}/bin/python" if self.local else self.python


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with nothing left open. `mpi`: the flavour that starts the ranks, empty where none
    does; `nodes`: those with ranks, as far as they are known."""

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
    """Raises PlanError, RequestError."""
    count = check_numbers(request, inputs.slurm.held)
    inputs.slurm.check()
    launcher, mpi = choose_launcher(request, inputs)
    nodes = tuple(unknown(number, inputs) for number in range(count))
    image = choose_image(inputs.slurm.image, launcher)
    have = nodes[:0] if image.value else nodes[:1]  # what an image has, its ranks will see
    checks.check_recipe_fits(inputs.recipe, inputs.stack)
    checks.check_script_arguments(request.script_args, inputs.stack)
    chosen = launch.choose_backend(inputs.stack, have, request.backend, inputs.plugins)
    stack = checks.fit_stack(inputs.stack, chosen, have)
    contained = image.value is not None
    below = launch.adapt_backend(chosen, launcher, mpi.value, contained=contained)
    backend = launch.explain_backend(below)
    precision = choose_precision(inputs.recipe, (), request, resume)
    layout = choose_layout(request, count, inputs.slurm)
    return Resolved(
        slurm=sized(inputs.slurm),
        nodes=nodes,
        launcher=launcher,
        mpi=mpi,
        layout=layout,
        stack=stack,
        backend=backend,
        precision=precision,
        preload=checks.defer_preload(stack.value, f"what of it the {'image has' if contained else 'nodes have'}"),
        image=image,
        training=training_of(request, inputs, stack.value, backend.value, precision.value, layout),
    )


def check_numbers(request: TrainRequest, held: Allocation | None = None) -> int:
    """Return how many nodes have ranks: all of an allocation that is held, else one.

    Raises:
        PlanError: for numbers that cannot be, or do not fit the allocation.
    """
    default = len(held.node_cpus) - request.spare_nodes if held else 1
    text = request.nodes or str(max(1, default))
    if not text.isdigit() or not 1 <= int(text) <= MOST_NODES:
        raise PlanError(
            f"--on slurm needs the number of nodes, not --nodes {text}.",
            hint="--nodes 4; --slurm nodelist=NAMES asks for certain ones.",
        )
    numbers = (request.stall_timeout, request.max_restarts, request.spare_nodes, request.min_nodes)
    if min(numbers) < 0:
        raise PlanError("--stall-timeout, --max-restarts, --spare-nodes and --min-nodes are 0 or more.")
    for flag, given in (("--min-nodes", request.min_nodes), ("--spare-nodes", request.spare_nodes)):
        if given and not request.max_restarts:
            raise PlanError(
                f"{flag} without --max-restarts: it says how a run restarts.", hint="Add --max-restarts 1 or more."
            )
    if held is not None:
        held.check(int(text) + request.spare_nodes, request.ppn or 1)
    return int(text)


def choose_launcher(request: TrainRequest, inputs: Inputs) -> tuple[str, Decision]:
    """Raises PlanError."""
    name = request.launcher or SRUN
    if name not in STARTERS:
        raise PlanError(
            f"--launcher {name} does not run on Slurm.",
            hint=did_you_mean(name, STARTERS) or f"Known are {', '.join(STARTERS)}.",
        )
    if inputs.slurm.pmi not in PMI:
        raise PlanError(f"--slurm pmi={inputs.slurm.pmi}: it is one of {', '.join(PMI)}.")
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
            f"--mpi {value}: below Slurm mpirun is that of {' or '.join(MPI)}.",
            hint="--mpi intel; or --launcher srun, which needs no mpirun.",
        )
    why = "asked for" if request.mpi else f"stack '{inputs.stack.name}'"
    return name, Decision(topic="mpi", value=value, reason=why)


def unknown(number: int, inputs: Inputs) -> Node:
    """A node that Slurm has still to choose; its stack is the shared one."""
    return Node(
        name=f"{WORD}-{number}",
        address=f"{WORD}-{number}",
        python=inputs.ranks_python,
        facts=inputs.facts,
        via=("srun",),
        repair="`orch setup` of the orch whose Python the nodes use",
    )


def sized(slurm: SlurmSettings) -> SlurmSettings:
    """Request whole nodes unless an option limits the share of a node.

    `--exclusive` alone gives all cores of a node, but only the site's default memory. An allocation
    that is held has its size already.
    """
    if slurm.held:
        return replace(slurm, sbatch={}, why={})
    added = {}
    if not any(name in slurm.sbatch for name in SIZES):
        added["exclusive"] = ("", "the default; cpus-per-task=N shares nodes")
    exclusive = added or slurm.sbatch.get("exclusive") == ""
    if exclusive and not any(name in slurm.sbatch for name in MEMORY):
        added["mem"] = ("0", "all memory of the nodes")
    values = {name: value for name, (value, _) in added.items()}
    reasons = {name: reason for name, (_, reason) in added.items()}
    return replace(slurm, sbatch={**slurm.sbatch, **values}, why={**slurm.why, **reasons})


def choose_layout(request: TrainRequest, count: int, slurm: SlurmSettings) -> Choice[Layout]:
    """Equal numbers of ranks; on which cores, only the job will know. Raises PlanError."""
    ppn = 1 if request.ppn is None else request.ppn
    if ppn < 1:
        raise PlanError(f"--ppn {ppn}: it is 1 or more.")
    threads = slurm.number("cpus-per-task") or 0  # without it the job's cores decide
    layout = uniform_layout(prefix=WORD, nodes=count, ppn=ppn, threads=threads)
    cores = "equal shares of the cores that the job is given"
    why = f"{ppn} on each node{'' if request.ppn else ', as --ppn does not say otherwise'}; {cores}"
    return Choice(layout, (Decision(topic="ranks", value=str(layout.world_size), reason=why),))


def training_of(
    request: TrainRequest, inputs: Inputs, stack: Stack, backend: Backend, precision: str, layout: Choice[Layout]
) -> Training:
    """Raises PlanError, RequestError."""
    recipe = inputs.recipe
    if request.ipex:
        checks.check_ipex(recipe, stack, precision=precision, ranks=layout.value.world_size)
    return Training(
        recipe=recipe,
        settings=recipe.settings(request.preset, inputs.settings),
        stack=stack,
        backend=backend,
        precision=precision,
        layout=layout.value,
    )
