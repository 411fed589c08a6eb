"""All decisions about a run on Kubernetes that are made before its objects are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import NodeCount
from orchestrator.model.layout import Layout, uniform_layout
from orchestrator.model.process_group import TRANSPORT_DESCRIPTIONS, TRANSPORTS, Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, launch
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.training import Training, resolve_training
from orchestrator.stacks.stack import Stack
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Installed, default_kind
from orchestrator.targets.kubernetes.manifests.quantity import plain
from orchestrator.targets.kubernetes.patch import Operation
from orchestrator.targets.kubernetes.settings import KubernetesSettings

TORCHRUN_ONLY = ("pytorchjob", "job")
ELASTIC = "pytorchjob"
MAX_PODS = 5000
MPI = {"intel": "Intel", "openmpi": "OpenMPI"}  # value of --mpi -> value of the operators' field


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files that a request names, after they are read."""

    recipe: Recipe
    stack: Stack
    kubernetes: KubernetesSettings
    settings: Mapping[str, Value] = field(default_factory=dict)  # of --set
    installed: Installed = field(default_factory=Installed)  # queried unless the request has a launcher
    patch: tuple[Operation, ...] = ()  # of --k8s-patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with all decisions made."""

    kubernetes: KubernetesSettings
    launcher: Choice[str]
    mpi: str | None  # the operators' value, or None for torchrun
    layout: Choice[Layout]
    min_nodes: int  # pods with which the run may continue
    stack: Choice[Stack]
    backend: Choice[Backend]
    precision: Choice[str]
    preload: Choice[tuple[str, ...]]
    training: Training


def resolve(request: TrainRequest, inputs: Inputs, resume: Resume | None = None) -> Resolved:
    """Make all decisions about a request.

    Raises:
        PlanError: if the request cannot be fulfilled.
        RequestError: if it is malformed.
    """
    nodes = check_numbers(request)
    kubernetes = inputs.kubernetes
    kubernetes.check()
    launcher, mpi = choose_launcher(request, inputs.installed)
    name = launcher.value
    stack, backend = choose_stack(request, inputs, hydra=mpi == MPI["intel"])
    precision = pods_precision(inputs.recipe, request, resume)
    layout = choose_layout(request, nodes, name, kubernetes)
    return Resolved(
        kubernetes=kubernetes,
        launcher=launcher,
        mpi=mpi,
        layout=layout,
        min_nodes=choose_min_nodes(inputs.recipe, request, len(layout.value.nodes), name),
        stack=stack,
        backend=backend,
        precision=precision,
        preload=checks.defer_preload(stack.value, "the image has"),
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


def check_numbers(request: TrainRequest) -> int:
    """Return the number of pods.

    Raises:
        PlanError: if a number is out of range.
    """
    if not isinstance(request.nodes, NodeCount) or not 1 <= request.nodes.number <= MAX_PODS:
        raise PlanError(
            f"--on k8s needs the number of pods: --nodes {request.nodes or 'is not given'}.",
            hint="Example: --nodes 4 starts four pods of --ppn ranks each.",
        )
    if min(request.stall_timeout, request.max_restarts) < 0:
        raise PlanError(
            f"--stall-timeout {request.stall_timeout} and --max-restarts {request.max_restarts} must be 0 or more.",
            hint="0 turns off the check for stalls, or the restarts.",
        )
    return request.nodes.number


def requested_mpi(request: TrainRequest) -> str | None:
    """Return the MPI that --mpi requests, as the operators call it.

    Raises:
        PlanError: if pods do not have it.
    """
    if request.mpi is not None and request.mpi not in MPI:
        raise PlanError(
            f"--mpi {request.mpi} is not available in pods.",
            hint=f"Use {' or '.join(MPI)}; images of `orch image build` have one of them.",
        )
    return MPI[request.mpi] if request.mpi else None


def choose_launcher(request: TrainRequest, installed: Installed) -> tuple[Choice[str], str | None]:
    """Return the kind of the job, and the MPI that starts its ranks, or None for torchrun.

    Raises:
        PlanError: if they do not fit each other.
    """
    requested, mpi = request.launcher, requested_mpi(request)
    if requested is not None and requested not in KINDS:
        raise PlanError(f"--launcher {requested} does not run on Kubernetes.", hint=did_you_mean(requested, KINDS))
    if mpi and (requested is None or requested in TORCHRUN_ONLY):
        condition = f"of a {KINDS[requested].kind}" if requested else "unless --launcher is given"
        raise PlanError(
            f"--mpi {request.mpi} has no effect: torchrun starts the ranks {condition}.",
            hint="Use --launcher mpijob, or remove --mpi.",
        )
    choice = Choice(requested) if requested else default_kind(installed, elastic=bool(request.min_nodes))
    kind = KINDS[choice.value]
    mpi = mpi or (MPI["intel"] if choice.value == "mpijob" else None)
    decision = Decision(
        topic="launcher",
        value=f"{kind.kind} {kind.group}/{kind.version}",
        reason="; ".join([f"{mpi} MPI" if mpi else "torchrun", *(d.reason for d in choice.decisions)]),
    )
    return Choice(choice.value, (decision,)), mpi


def choose_stack(request: TrainRequest, inputs: Inputs, *, hydra: bool) -> tuple[Choice[Stack], Choice[Backend]]:
    """Return the stack and the backend; the pods check whether the image has them.

    Raises:
        PlanError: if the recipe or the backend does not fit the stack.
    """
    checks.check_recipe_fits(inputs.recipe, inputs.stack)
    checks.check_script_arguments(request.script_args, inputs.stack)
    backend = launch.choose_backend(inputs.stack, (), request.backend, {})
    pod_backend = with_transport(backend, hydra=hydra)
    return checks.fit_stack(inputs.stack, backend, ()), launch.explain_backend(pod_backend)


def with_transport(backend: Backend, *, hydra: bool) -> Backend:
    """Return the backend with the transport of oneCCL, which uses libfabric itself without hydra."""
    if backend.name != "ccl":
        return backend
    transport = "mpi" if hydra else "ofi"
    env = dict(backend.env) | dict(TRANSPORTS[transport])
    summary = f"{backend.summary}, {TRANSPORT_DESCRIPTIONS[transport]}"
    return replace(backend, summary=summary, env=tuple(env.items()))


def pods_precision(recipe: Recipe, request: TrainRequest, resume: Resume | None) -> Choice[str]:
    """Return the precision, and how pods without BF16 instructions handle it."""
    precision = choose_precision(recipe, (), request, resume)
    if precision.value != "bf16":
        return precision
    slow = "emulated by pods without BF16 instructions"
    refused = "pods without BF16 instructions refuse it"
    (decision,) = precision.decisions
    reason = f"{decision.reason}; {slow if request.allow_slow_bf16 else refused}"
    return Choice(precision.value, (replace(decision, reason=reason),))


def choose_layout(request: TrainRequest, nodes: int, launcher: str, kubernetes: KubernetesSettings) -> Choice[Layout]:
    """Return the layout, with an equal share of its pod's CPUs for each rank."""
    ppn = 1 if request.ppn is None else request.ppn
    if ppn < 1 or (ppn > kubernetes.cpus and not kubernetes.share_cores):
        raise PlanError(
            f"--ppn {ppn}, but a pod has {plain(kubernetes.cpus)} CPUs.",
            hint=f"Use --k8s cpu={max(ppn, 1)} or more, or a smaller --ppn. On a small test "
            "cluster, --k8s share_cores=true lets ranks share cores.",
        )
    prefix = "node" if launcher == "trainjob" else "worker"
    threads = max(1, int(kubernetes.cpus // ppn))
    layout = uniform_layout(prefix=prefix, nodes=nodes, ppn=ppn, threads=threads)
    return Choice(layout, describe_pods(layout, kubernetes))


def choose_min_nodes(recipe: Recipe, request: TrainRequest, nodes: int, name: str) -> int:
    """Return the number of pods with which an elastic run may continue.

    Raises:
        PlanError: if the run cannot continue with fewer pods.
    """
    least = request.min_nodes
    if not least:
        return nodes
    if name != ELASTIC:
        raise PlanError(
            f"--min-nodes {least}: only a PyTorchJob continues with fewer pods.",
            hint=f"Remove --min-nodes, or --launcher {name}.",
        )
    if not 1 <= least <= nodes:
        raise PlanError(f"--min-nodes {least}, but --nodes is {nodes}.", hint=f"Use 1 to {nodes}.")
    if not (recipe.elastic or recipe.own_script):
        raise PlanError(
            f"--min-nodes: recipe '{recipe.name}' needs all of its ranks.",
            hint="Remove --min-nodes, or set `elastic = true` in your own recipe.toml "
            "if the recipe can continue with fewer ranks.",
        )
    if not request.max_restarts:
        raise PlanError(
            "--min-nodes needs --max-restarts: a run continues with fewer pods by restarting.",
            hint="Add --max-restarts 1 or more.",
        )
    return least


def describe_cores(kubernetes: KubernetesSettings, *, ppn: int) -> str:
    """Return whether the ranks of a pod have cores for themselves."""
    if ppn > kubernetes.cpus:
        return "ranks share cores, which is slow"
    if kubernetes.cpus.denominator == 1:
        return "guaranteed"
    return "guaranteed, but not whole cores, which are never exclusive"


def describe_pods(layout: Layout, kubernetes: KubernetesSettings) -> tuple[Decision, ...]:
    """Return the decisions about the pods, their image, volume and ranks."""
    size = f"{kubernetes.cpu} CPUs, {kubernetes.memory}"
    first_rank = layout.rank_places[0]
    cores = describe_cores(kubernetes, ppn=first_rank.local_world_size)
    labels = ", ".join(
        [*(f"{key}={value}" for key, value in kubernetes.node_selector.items()), *kubernetes.node_affinity]
    )
    return (
        Decision(
            topic="pods",
            value=f"{len(layout.nodes)}, each with {size}",
            reason=f"{cores}; on nodes with {labels}" if labels else cores,
        ),
        Decision(topic="image", value=kubernetes.image),
        Decision(
            topic="volume",
            value=f"{kubernetes.claim} at {kubernetes.mount}",
            reason=f"data, checkpoints and outputs; /dev/shm has {kubernetes.shm}",
        ),
        Decision(
            topic="ranks",
            value=str(layout.world_size),
            reason=f"{first_rank.local_world_size} in each pod, threads of each: {first_rank.threads}",
        ),
    )
