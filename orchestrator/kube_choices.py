"""The choices of a run on Kubernetes, each with the decision that tells it. Pure."""

from __future__ import annotations

from dataclasses import replace

from orchestrator import choices
from orchestrator.backend import TRANSPORT_NAMES, TRANSPORTS, Backend
from orchestrator.errors import PlanError, did_you_mean
from orchestrator.kube import card
from orchestrator.kube.quantity import plain
from orchestrator.kube.settings import KubeSettings
from orchestrator.launchers.kubernetes_jobs import KINDS
from orchestrator.layout import Layout
from orchestrator.plan import Decision
from orchestrator.recipe import Recipe
from orchestrator.stack import Stack
from orchestrator.train_request import TrainRequest


def check_request(request: TrainRequest, launcher: str) -> None:
    """Raises PlanError for what only nodes behind SSH have, and for numbers that cannot be."""
    if launcher not in KINDS:
        raise PlanError(
            f"--launcher {launcher} does not run on Kubernetes.", hint=did_you_mean(launcher, KINDS)
        )
    for flag, given, instead in (
        ("--exclude", request.exclude, "node_selector chooses the nodes"),
        ("--spare-nodes", request.spare_nodes, "the scheduler finds another node by itself"),
        ("--queue", request.queue, "pods wait for room by themselves"),
        ("--ccl-workers", request.ccl_workers, "cores are set apart only where orch pins ranks"),
    ):
        if given:
            raise PlanError(f"{flag} is for nodes behind SSH.", hint=f"On Kubernetes {instead}.")
    if not (request.nodes or "").isdigit() or not 1 <= int(request.nodes or 0) <= 5000:
        raise PlanError(
            f"--on k8s needs the number of pods, not --nodes {request.nodes or 'nothing'}.",
            hint="--nodes 4",
        )
    if min(request.stall_timeout, request.max_restarts) < 0:
        raise PlanError("--stall-timeout and --max-restarts are 0 or more.")


def for_pods(backend: Backend, launcher: str, settings: KubeSettings) -> Backend:
    """Under torchrun and Open MPI there is no hydra: oneCCL talks over libfabric itself."""
    hydra = launcher == "mpijob" and settings.mpi != "OpenMPI"
    if backend.name != "ccl":
        return backend
    way = "mpi" if hydra else "ofi"
    env = dict(backend.env) | dict(TRANSPORTS[way])
    words = f"{backend.summary}, {TRANSPORT_NAMES[way]}"
    return replace(backend, summary=words, env=tuple(env.items()))


def choose_precision(recipe: Recipe, request: TrainRequest) -> Decision:
    """As on nodes, but nothing is known of the CPUs yet: each pod looks, and refuses."""
    found = choices.choose_precision(
        recipe, (), asked=request.precision, allow_slow=request.allow_slow_bf16
    )
    if found.value != "bf16":
        return found
    what = "emulated where it must be" if request.allow_slow_bf16 else "a pod without it refuses"
    return replace(found, reason=f"{found.reason}; {what}")


def lay_out(request: TrainRequest, launcher: str, settings: KubeSettings) -> Layout:
    """Equal shares of each pod's CPUs; which CPUs these are, only the pod will know."""
    nodes, ppn = int(request.nodes or 1), request.ppn or 1
    cpus = settings.cpus
    if ppn < 1 or cpus < ppn:
        raise PlanError(
            f"--ppn {ppn}, but a pod has {plain(cpus)} CPUs.",
            hint=f"--k8s cpu={max(ppn, 1)} or more, or fewer ranks with --ppn.",
        )
    word = "node" if launcher == "trainjob" else "worker"
    return card.layout(word=word, nodes=nodes, ppn=ppn, threads=int(cpus // ppn))


def least_nodes(recipe: Recipe, request: TrainRequest, settings: KubeSettings, nodes: int) -> int:
    """How few pods an elastic run goes on with. Raises PlanError."""
    least = settings.min_nodes
    if least is None:
        return nodes
    if not 1 <= least <= nodes:
        raise PlanError(f"min_nodes = {least}, but --nodes is {nodes}.")
    if not (recipe.elastic or recipe.own_script):
        raise PlanError(f"min_nodes: recipe '{recipe.name}' needs all of its ranks.")
    if not request.max_restarts:
        raise PlanError(
            "min_nodes without --max-restarts: a run goes on with fewer pods by starting again.",
            hint="Add --max-restarts 1 or more.",
        )
    return least


def tell_pods(layout: Layout, settings: KubeSettings) -> tuple[Decision, ...]:
    whole = settings.cpus.denominator == 1
    size = f"{settings.cpu} CPUs, {settings.memory}"
    why = "guaranteed" if whole else "guaranteed, but no whole cores: they are never its own"
    labels = ", ".join(f"{key}={value}" for key, value in settings.node_selector.items())
    return (
        Decision(
            topic="pods", value=f"{len(layout.nodes)}, each with {size}",
            reason=f"{why}; on nodes with {labels}" if labels else why,
        ),
        Decision(topic="image", value=settings.image),
        Decision(
            topic="volume", value=f"{settings.claim} at {settings.mount}",
            reason=f"data, checkpoints and outputs; /dev/shm has {settings.shm}",
        ),
        Decision(
            topic="ranks", value=str(layout.world_size),
            reason=f"{layout.places[0].local_world_size} in each pod, "
            f"threads of each: {layout.places[0].threads}",
        ),
    )  # fmt: skip


def tell_launcher(launcher: str, settings: KubeSettings) -> Decision:
    kind = KINDS[launcher]
    mpi = settings.mpi or ("Intel" if launcher == "mpijob" else None)
    how = f"{mpi} MPI" if mpi else "torchrun"
    return Decision(topic="launcher", value=f"{kind.kind} {kind.group}/{kind.version}", reason=how)


def tell_preload(stack: Stack) -> Decision:
    wanted = ", ".join(stack.preload) or "nothing"
    return Decision(topic="preload", value=wanted, reason="what of it the image has")
