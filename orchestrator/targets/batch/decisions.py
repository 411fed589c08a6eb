"""Decide everything about a job that its script depends on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Facts, Gpu, Node, UserPython
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.measurement import Measurement
from orchestrator.model.printable import counted
from orchestrator.model.process_group import uses_gpus
from orchestrator.planning import launchers
from orchestrator.planning.launchers import DEFAULT, LAUNCHERS, WITHOUT_MPI
from orchestrator.planning.measured import valid_for
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import CountedNodes, Inputs, Resolved, count_nodes, resolve
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import ONE_RANK, Allocation, BatchSystem
from orchestrator.targets.interpreter import repair_command

MPI = ("intel", "mpich")  # Their hydra can start processes with batch systems; the wheel of Open MPI supports only ssh.
MAX_NODES = 10_000
NODE_PREFIX = "node"  # The prefix of placeholders for nodes that the batch system has not chosen yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInputs:
    """The files, settings and facts from which a job is planned.

    Attributes:
        loaded: the files that the request names.
        batch: the settings for the batch system, with the size of the job.
        facts: the facts of the host with the system's programs and of its stack, which all nodes see.
        python: the interpreter that starts the run.
        user_python: the ranks' interpreter, if the user has named one.
        default_ranks: the ranks on each node for --ppn auto, with the reason.
        measurement: what `orch bench` has measured on such nodes, or None.
    """

    loaded: Inputs
    batch: BatchSettings
    facts: Facts
    python: str
    user_python: UserPython | None = None
    default_ranks: tuple[int, str] = ONE_RANK
    measurement: Measurement | None = None


def resolve_job(request: TrainRequest, inputs: JobInputs, resume: Resume | None = None) -> Resolved:
    """Return a request with all choices made.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    batch = inputs.batch
    batch.check()
    # The default is all of a held allocation.
    default = max(1, len(batch.held.node_cpus) - request.spare_nodes) if batch.held else 1
    hint = f"Example: --nodes 4. {batch.system.node_hints['nodes']}"
    count = count_nodes(request, default, limit=MAX_NODES, hint=hint)
    gpus = batch.held.gpus if batch.held else batch.system.requested_gpus(batch.options, count + request.spare_nodes)
    on_gpus = uses_gpus(request.backend, inputs.loaded.plugins)
    if on_gpus and not gpus:
        raise PlanError(f"--backend {request.backend}: the job requests no GPUs.", hint=batch.system.gpu_hint)
    default_ranks = (gpus, "one for each GPU that the job requests") if on_gpus else inputs.default_ranks
    requested = tuple(Gpu(index=number, name="GPU") for number in range(gpus))
    inputs = replace(inputs, facts=replace(inputs.facts, gpus=requested))  # not those of the login host
    ppn = default_ranks[0] if request.ppn is None else request.ppn
    if batch.held:
        check_size(batch.system, batch.held, count + request.spare_nodes, ppn)
    launcher, mpi = choose_launcher(request, inputs)
    nodes = tuple(placeholder_node(number, inputs) for number in range(count))
    reason = f", {default_ranks[1]}" if request.ppn is None else ""
    counted_nodes = CountedNodes(
        count=count,
        prefix=NODE_PREFIX,
        ppn=ppn,
        threads=batch.system.threads_per_rank(batch.options, ppn or 1),
        placement=f"{ppn} on each node{reason}; equal shares of the cores that the job is given",
        software="the image has" if batch.image else "the nodes have",
        gpus=gpus,
        nodes=Choice(nodes),
        measurement=inputs.measurement and valid_for(inputs.measurement, nodes, by_name=False),
        with_stack=() if batch.image else nodes[:1],  # the libraries of an image are unknown until its ranks run
    )
    contained = batch.image is not None
    return resolve(request, inputs.loaded, counted_nodes, resume, launcher=launcher, mpi=mpi, contained=contained)


def choose_launcher(request: TrainRequest, inputs: JobInputs) -> tuple[str, Decision]:
    """Return the launcher, and the decision about the MPI implementation.

    Raises:
        PlanError: if the launcher or the MPI implementation does not work on the batch system.
    """
    system = inputs.batch.system
    name, names = request.launcher or system.launcher, tuple(dict.fromkeys((system.launcher, *LAUNCHERS)))
    without_mpi = (system.own_launcher, *WITHOUT_MPI)
    launchers.check_launcher_name(name, names, system.title)
    launchers.check_mpi(request.mpi, name, without_mpi, DEFAULT)
    if name in without_mpi:
        return name, Decision(topic="mpi", value="")
    value = request.mpi or inputs.loaded.stack.mpi
    if value not in MPI:
        raise PlanError(
            f"--mpi {value}: on {system.title}, mpirun must be that of {' or '.join(MPI)}.",
            hint=f"Use --mpi intel, or --launcher {system.own_launcher or 'torchrun'}, which needs no mpirun.",
        )
    reason = "requested" if request.mpi else f"stack '{inputs.loaded.stack.name}'"
    return name, Decision(topic="mpi", value=value, reason=reason)


def placeholder_node(number: int, inputs: JobInputs) -> Node:
    """Return a placeholder for a node that the batch system has not chosen yet; its stack is the shared one."""
    python = inputs.user_python
    return Node(
        name=f"{NODE_PREFIX}-{number}",
        address=f"{NODE_PREFIX}-{number}",
        python=inputs.python,
        facts=inputs.facts,
        via=(inputs.batch.system.launcher,),
        repair=repair_command(python.path) if python else "`orch setup` of the installation whose Python the nodes use",
        user_python=python,
    )


def with_size(batch: BatchSettings) -> BatchSettings:
    """Return the settings with a request for whole nodes, unless an option limits the share of a node.

    An allocation that is held has its size already.
    """
    if batch.held:
        return batch
    added = batch.system.default_options(batch.options)
    values = {name: value for name, (value, _) in added.items()}
    reasons = {name: reason for name, (_, reason) in added.items()}
    return replace(batch, options={**batch.options, **values}, sources={**batch.sources, **reasons})


def check_size(system: BatchSystem, allocation: Allocation, nodes: int, ppn: int) -> None:
    """Raise PlanError if the ranks do not fit the allocation that the user holds."""
    assert system.held is not None
    size, program = len(allocation.node_cpus), system.held.request
    if nodes > size:
        raise PlanError(
            f"Allocation {allocation.job} has {counted(size, 'node')}, but the run needs "
            f"{nodes}, including its spare nodes.",
            hint=f"Use fewer --nodes, or a larger `{program} --nodes={nodes}`. {system.new_job_hint}",
        )
    fewest = min(allocation.node_cpus[:nodes])
    if ppn > fewest:
        raise PlanError(
            f"Allocation {allocation.job} has {fewest} CPUs on a node, but --ppn is {ppn}.",
            hint=f"Use a smaller --ppn, or `{program} --exclusive` for whole nodes. {system.new_job_hint}",
        )


def check_options(system: BatchSystem, allocation: Allocation, options: Iterable[str]) -> None:
    """Raise PlanError for options that only a new job can have."""
    if names := ", ".join(options):
        raise PlanError(
            f"{names}: allocation {allocation.job} exists already and cannot be changed.",
            hint=f"Leave it out. {system.new_job_hint}",
        )
