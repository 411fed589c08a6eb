"""Decide everything about a job that its script depends on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orch_node.protocol.slurm import LocalStack

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.launchers import LAUNCHERS
from orchestrator.model.cluster import Facts, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import CountedNodes, Inputs, RankStart, Resolved, count_nodes, resolve
from orchestrator.targets.batch.settings import MEMORY, SIZES, SlurmSettings

SRUN = "srun"
LAUNCHER_NAMES = (SRUN, *LAUNCHERS)
MPI = ("intel", "mpich")  # Their hydra can start processes with srun; the wheel of Open MPI supports only ssh.
MAX_NODES = 10_000
PMI = ("auto", "none", "pmi2", "pmix")
NODE_PREFIX = "node"  # The prefix of placeholders for nodes that Slurm has not chosen yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInputs:
    """What a job is planned from.

    Attributes:
        loaded: the files that the request names.
        slurm: the settings for Slurm, with the size of the job.
        facts: the facts of the host with Slurm's programs and of its stack, which all nodes see.
        python: the interpreter that starts the run.
        local: the copy of the stack on each node's disk that the ranks use; None for the shared stack.
    """

    loaded: Inputs
    slurm: SlurmSettings
    facts: Facts
    python: str
    local: LocalStack | None = None

    @property
    def ranks_python(self) -> str:
        """Return the interpreter of the ranks on the nodes."""
        return f"{self.local.folder}/bin/python" if self.local else self.python


def resolve_job(request: TrainRequest, inputs: JobInputs, resume: Resume | None = None) -> Resolved:
    """Return a request with all choices made.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    slurm = inputs.slurm
    slurm.check()
    # The default is all of a held allocation.
    default = max(1, len(slurm.held.node_cpus) - request.spare_nodes) if slurm.held else 1
    hint = "Example: --nodes 4. --slurm nodelist=NAMES selects specific nodes."
    count = count_nodes(request, default, limit=MAX_NODES, hint=hint)
    if slurm.held:
        slurm.held.check(count + request.spare_nodes, request.ppn or 1)
    launcher, mpi = choose_launcher(request, inputs)
    nodes = tuple(placeholder_node(number, inputs) for number in range(count))
    ppn = f"{request.ppn or 1} on each node{'' if request.ppn else ', the default of --ppn'}"
    counted_nodes = CountedNodes(
        count=count,
        prefix=NODE_PREFIX,
        threads=slurm.number("cpus-per-task") or 0,
        placement=f"{ppn}; equal shares of the cores that the job is given",
        software="the image has" if slurm.image else "the nodes have",
        nodes=Choice(nodes),
        with_stack=() if slurm.image else nodes[:1],  # the libraries of an image are unknown until its ranks run
    )
    start = RankStart(launcher=launcher, mpi=mpi, contained=slurm.image is not None)
    return resolve(request, inputs.loaded, counted_nodes, start, resume)


def choose_launcher(request: TrainRequest, inputs: JobInputs) -> tuple[str, Decision]:
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
    value = request.mpi or inputs.loaded.stack.mpi
    if value not in MPI:
        raise PlanError(
            f"--mpi {value}: on Slurm, mpirun must be that of {' or '.join(MPI)}.",
            hint="Use --mpi intel, or --launcher srun, which needs no mpirun.",
        )
    reason = "requested" if request.mpi else f"stack '{inputs.loaded.stack.name}'"
    return name, Decision(topic="mpi", value=value, reason=reason)


def placeholder_node(number: int, inputs: JobInputs) -> Node:
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
        return slurm
    added = {}
    if not any(name in slurm.sbatch for name in SIZES):
        added["exclusive"] = ("", "the default; cpus-per-task=N shares nodes")
    exclusive = added or slurm.sbatch.get("exclusive") == ""
    if exclusive and not any(name in slurm.sbatch for name in MEMORY):
        added["mem"] = ("0", "all memory of the nodes")
    values = {name: value for name, (value, _) in added.items()}
    reasons = {name: reason for name, (_, reason) in added.items()}
    return replace(slurm, sbatch={**slurm.sbatch, **values}, sources={**slurm.sources, **reasons})
