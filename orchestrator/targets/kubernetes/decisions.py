"""All decisions about a run on Kubernetes that are made before its objects are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import PlanError
from orchestrator.model.decision import GPUS, Choice, Decision
from orchestrator.model.process_group import uses_gpus
from orchestrator.model.recipe import Recipe
from orchestrator.planning.launch import check_name
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import CountedNodes, Inputs, Resolved, count_nodes, resolve
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Installed, default_kind
from orchestrator.targets.kubernetes.patch import Operation
from orchestrator.targets.kubernetes.settings import KubernetesSettings, plain

ELASTIC = "pytorchjob"
MAX_PODS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInputs:
    """The files and settings from which a run in pods is planned."""

    loaded: Inputs  # the files that the request names
    kubernetes: KubernetesSettings
    installed: Installed = field(default_factory=Installed)  # queried unless the request has a launcher
    patch: tuple[Operation, ...] = ()  # of --k8s-patch
    contents: Mapping[str, bytes] = field(default_factory=dict)  # by path: the files that the image does not have
    project: bytes = b""  # a gzipped tar archive of the recipe's project


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPods:
    """A request with all decisions made, also those about its pods."""

    resolved: Resolved
    kubernetes: KubernetesSettings
    launcher: Choice[str]  # the kind of the job
    min_nodes: int  # pods with which the run may continue


def resolve_pods(request: TrainRequest, inputs: PodInputs, resume: Resume | None = None) -> ResolvedPods:
    """Make all decisions about a request.

    Raises:
        PlanError: if the request cannot be fulfilled.
        RequestError: if it is malformed.
    """
    hint = "Example: --nodes 4 starts four pods of --ppn ranks each."
    count = count_nodes(request, None, limit=MAX_PODS, hint=hint)
    inputs.kubernetes.check()
    launcher = choose_launcher(request, inputs.installed)
    check_min_nodes(inputs.loaded.recipe, request, launcher.value)
    no_mpi = Decision(topic="mpi", value="")
    pods = pods_of(request, count, launcher.value, inputs.kubernetes)
    resolved = resolve(request, inputs.loaded, pods, resume, launcher="torchrun", mpi=no_mpi)
    return ResolvedPods(
        resolved=replace(resolved, precision=with_emulation(resolved.precision, request)),
        kubernetes=inputs.kubernetes,
        launcher=launcher,
        min_nodes=request.min_nodes or count,
    )


def choose_launcher(request: TrainRequest, installed: Installed) -> Choice[str]:
    """Return the kind of the job.

    Raises:
        PlanError: if it does not exist, or the cluster has none that can run the request.
    """
    requested = request.launcher
    if requested is not None:
        check_name(requested, KINDS, "Kubernetes")
    choice = Choice(requested) if requested else default_kind(installed, elastic=bool(request.min_nodes))
    kind = KINDS[choice.value]
    decision = Decision(
        topic="launcher",
        value=f"{kind.kind} {kind.group}/{kind.version}",
        reason="; ".join(["torchrun", *(d.reason for d in choice.decisions)]),
    )
    return Choice(choice.value, (decision,))


def with_emulation(precision: Choice[str], request: TrainRequest) -> Choice[str]:
    """Return the precision with how pods without BF16 instructions handle it."""
    if precision.value != "bf16":
        return precision
    slow = "emulated by pods without BF16 instructions"
    refused = "pods without BF16 instructions refuse it"
    (decision,) = precision.decisions
    reason = f"{decision.reason}; {slow if request.allow_slow_bf16 else refused}"
    return Choice(precision.value, (replace(decision, reason=reason),))


def pods_of(request: TrainRequest, count: int, launcher: str, kubernetes: KubernetesSettings) -> CountedNodes:
    """Return the pods, with an equal share of its pod's CPUs for each rank.

    Raises:
        PlanError: if a pod has too few CPUs.
    """
    on_gpus = uses_gpus(request.backend, {})
    if on_gpus and not kubernetes.gpu:
        raise PlanError(
            f"--backend {request.backend}: the pods request no GPUs.",
            hint="Request them: --k8s gpu=8, for other GPUs than NVIDIA's with --k8s gpu_resource=NAME.",
        )
    default = kubernetes.gpu if on_gpus else 1
    ppn = default if request.ppn is None else request.ppn
    if ppn > kubernetes.cpus and not kubernetes.share_cores:
        raise PlanError(
            f"--ppn {ppn}, but a pod has {plain(kubernetes.cpus)} CPUs.",
            hint=f"Use --k8s cpu={ppn} or more, or a smaller --ppn. On a small test cluster, --k8s share_cores=true "
            "lets ranks share cores.",
        )
    threads = max(1, int(kubernetes.cpus // max(1, ppn)))
    return CountedNodes(
        count=count,
        prefix="node" if launcher == "trainjob" else "worker",
        ppn=ppn,
        threads=threads,
        placement=f"{ppn} in each pod, threads of each: {threads}",
        software="the image has",
        gpus=kubernetes.gpu,
    )


def check_min_nodes(recipe: Recipe, request: TrainRequest, launcher: str) -> None:
    """Raise PlanError for --min-nodes if the run cannot continue with fewer pods."""
    if not request.min_nodes:
        return
    if launcher != ELASTIC:
        raise PlanError(
            f"--min-nodes {request.min_nodes}: only a PyTorchJob continues with fewer pods.",
            hint=f"Remove --min-nodes, or --launcher {launcher}.",
        )
    if not (recipe.elastic or recipe.own_script):
        raise PlanError(
            f"--min-nodes: recipe '{recipe.name}' needs all of its ranks.",
            hint="Remove --min-nodes, or set `elastic = true` in your own recipe.toml "
            "if the recipe can continue with fewer ranks.",
        )


def describe_cores(kubernetes: KubernetesSettings, *, ppn: int) -> str:
    """Return whether the ranks of a pod have cores for themselves."""
    if ppn > kubernetes.cpus:
        return "ranks share cores, which is slow"
    if kubernetes.cpus.denominator == 1:
        return "guaranteed"
    return "guaranteed, but not whole cores, which are never exclusive"


def describe_pods(pods: ResolvedPods) -> tuple[Decision, ...]:
    """Return the decisions about the pods, their image and volume."""
    layout, kubernetes = pods.resolved.layout.value, pods.kubernetes
    size = f"{kubernetes.cpu} CPUs, {kubernetes.memory}"
    gpus = f"{kubernetes.gpu} {kubernetes.gpu_resource} in each pod"
    cores = describe_cores(kubernetes, ppn=layout.rank_places[0].local_world_size)
    labels = ", ".join(
        [*(f"{key}={value}" for key, value in kubernetes.node_selector.items()), *kubernetes.node_affinity]
    )
    return (
        Decision(
            topic="pods",
            value=f"{len(layout.nodes)}, each with {size}",
            reason=f"{cores}; on nodes with {labels}" if labels else cores,
        ),
        *([Decision(topic=GPUS, value=gpus)] if kubernetes.gpu else []),
        Decision(topic="image", value=kubernetes.image),
        Decision(
            topic="volume",
            value=f"{kubernetes.claim} at {kubernetes.mount}",
            reason=f"data, checkpoints and outputs; /dev/shm has {kubernetes.shm}",
        ),
    )
