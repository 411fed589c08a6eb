"""Everything that is decided of a run on Kubernetes before its objects are written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.layout import Layout, uniform_layout
from orchestrator.model.process_group import TRANSPORT_DESCRIPTIONS, TRANSPORTS, Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import checks, launch
from orchestrator.planning.precision import choose_precision
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.training import Training
from orchestrator.stacks.stack import Stack
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, Installed, default_kind
from orchestrator.targets.kubernetes.manifests.quantity import plain
from orchestrator.targets.kubernetes.options import KubeOptions
from orchestrator.targets.kubernetes.patch import Operation
from orchestrator.targets.kubernetes.settings import KubeSettings

TORCHRUN_ONLY = ("pytorchjob", "job")
ELASTIC = "pytorchjob"
MOST_PODS = 5000
MPI = {"intel": "Intel", "openmpi": "OpenMPI"}  # as --mpi says it -> as the operators do


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a request names, as read from files. `settings`: those of --set; `kube`: of the pods;
    `installed`: what the cluster has, asked where the request leaves the launcher open; `patch`:
    the user's changes to the objects."""

    recipe: Recipe
    stack: Stack
    kube: KubeSettings
    settings: Mapping[str, Value] = field(default_factory=dict)
    installed: Installed = field(default_factory=Installed)
    patch: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with nothing left open. `mpi`: as the operators name it, None for torchrun;
    `least`: with how few pods the run may go on."""

    kube: KubeSettings
    launcher: Choice[str]
    mpi: str | None
    layout: Choice[Layout]
    least: int
    stack: Choice[Stack]
    backend: Choice[Backend]
    precision: Choice[str]
    preload: Choice[tuple[str, ...]]
    training: Training


def resolve(request: TrainRequest, inputs: Inputs, resume: Resume | None = None) -> Resolved:
    """Raises PlanError, RequestError."""
    check_numbers(request)
    kube = with_flags(request, inputs.kube)
    kube.check()
    launcher, mpi = choose_launcher(request.launcher, kube, inputs.installed)
    name = launcher.value
    stack, backend = choose_stack(request, inputs, hydra=mpi == MPI["intel"])
    precision = pods_precision(inputs.recipe, request, resume)
    layout = choose_layout(request, name, kube)
    return Resolved(
        kube=kube,
        launcher=launcher,
        mpi=mpi,
        layout=layout,
        least=least_nodes(inputs.recipe, request, kube, len(layout.value.nodes), name),
        stack=stack,
        backend=backend,
        precision=precision,
        preload=checks.defer_preload(stack.value, "what of it the image has"),
        training=training_of(
            request, inputs, stack.value, backend.value, precision=precision.value, layout=layout.value
        ),
    )


def check_numbers(request: TrainRequest) -> None:
    """Raises PlanError for numbers that cannot be."""
    if not (request.nodes or "").isdigit() or not 1 <= int(request.nodes or 0) <= MOST_PODS:
        raise PlanError(
            f"--on k8s needs the number of pods: --nodes {request.nodes or 'is not given'}.",
            hint="--nodes 4: four pods of --ppn ranks each.",
        )
    if min(request.stall_timeout, request.max_restarts) < 0:
        raise PlanError("--stall-timeout and --max-restarts are 0 or more.")


def with_flags(request: TrainRequest, kube: KubeSettings) -> KubeSettings:
    """The settings, in which flags that all targets have win over the file. Raises PlanError."""
    if request.mpi is not None:
        if request.mpi not in MPI:
            raise PlanError(
                f"--mpi {request.mpi}: pods have {' or '.join(MPI)}.",
                hint="Images of `orch image build` have Intel MPI, or Open MPI.",
            )
        check_once(request, "--mpi", "mpi")
        kube = replace(kube, mpi=MPI[request.mpi])
    if request.min_nodes:
        check_once(request, "--min-nodes", "min_nodes")
        kube = replace(kube, min_nodes=request.min_nodes)
    return kube


def check_once(request: TrainRequest, flag: str, name: str) -> None:
    if any(pair.startswith(f"{name}=") for pair in request.options_of(KubeOptions).k8s):
        raise PlanError(f"{flag} and --k8s {name} are the same.", hint="Leave one of them out.")


def choose_launcher(asked: str | None, kube: KubeSettings, installed: Installed) -> tuple[Choice[str], str | None]:
    """The kind of the job, and the MPI that starts its ranks, if it is one. Raises PlanError."""
    if asked is not None and asked not in KINDS:
        raise PlanError(f"--launcher {asked} does not run on Kubernetes.", hint=did_you_mean(asked, KINDS))
    if kube.mpi and (asked is None or asked in TORCHRUN_ONLY):
        which = f"of a {KINDS[asked].kind}" if asked else "unless --launcher is given"
        raise PlanError(
            f"mpi {kube.mpi}: torchrun starts the ranks {which}.",
            hint="--launcher mpijob has MPI; or leave --mpi (and mpi of orch-k8s.toml) out.",
        )
    found = Choice(asked) if asked else default_kind(installed, elastic=kube.min_nodes is not None)
    kind = KINDS[found.value]
    mpi = kube.mpi or (MPI["intel"] if found.value == "mpijob" else None)
    told = Decision(
        topic="launcher",
        value=f"{kind.kind} {kind.group}/{kind.version}",
        reason="; ".join([f"{mpi} MPI" if mpi else "torchrun", *(d.reason for d in found.decisions)]),
    )
    return Choice(found.value, (told,)), mpi


def choose_stack(request: TrainRequest, inputs: Inputs, *, hydra: bool) -> tuple[Choice[Stack], Choice[Backend]]:
    """Raises PlanError. Which of it the image has, only the pods will know."""
    checks.check_recipe_fits(inputs.recipe, inputs.stack)
    checks.check_script_arguments(request.script_args, inputs.stack)
    chosen = launch.choose_backend(inputs.stack, (), request.backend, {})
    backend = for_pods(chosen, hydra=hydra)
    return checks.fit_stack(inputs.stack, chosen, ()), launch.explain_backend(backend)


def for_pods(backend: Backend, *, hydra: bool) -> Backend:
    """Under torchrun and Open MPI there is no hydra: oneCCL talks over libfabric itself."""
    if backend.name != "ccl":
        return backend
    way = "mpi" if hydra else "ofi"
    env = dict(backend.env) | dict(TRANSPORTS[way])
    words = f"{backend.summary}, {TRANSPORT_DESCRIPTIONS[way]}"
    return replace(backend, summary=words, env=tuple(env.items()))


def pods_precision(recipe: Recipe, request: TrainRequest, resume: Resume | None) -> Choice[str]:
    """Return the precision, with what pods without BF16 instructions will do."""
    precision = choose_precision(recipe, (), request, resume)
    if precision.value != "bf16":
        return precision
    slow = "emulated by pods without BF16 instructions"
    refused = "pods without BF16 instructions refuse it"
    (decision,) = precision.decisions
    reason = f"{decision.reason}; {slow if request.allow_slow_bf16 else refused}"
    return Choice(precision.value, (replace(decision, reason=reason),))


def choose_layout(request: TrainRequest, launcher: str, kube: KubeSettings) -> Choice[Layout]:
    """Equal shares of each pod's CPUs; which CPUs these are, only the pod will know."""
    nodes, ppn = int(request.nodes or 1), 1 if request.ppn is None else request.ppn
    if ppn < 1 or (ppn > kube.cpus and not kube.share_cores):
        raise PlanError(
            f"--ppn {ppn}, but a pod has {plain(kube.cpus)} CPUs.",
            hint=f"--k8s cpu={max(ppn, 1)} or more, or fewer ranks with --ppn. On a small test "
            "cluster --k8s share_cores=true lets ranks share cores.",
        )
    word = "node" if launcher == "trainjob" else "worker"
    threads = max(1, int(kube.cpus // ppn))
    layout = uniform_layout(prefix=word, nodes=nodes, ppn=ppn, threads=threads)
    return Choice(layout, tell_pods(layout, kube))


def least_nodes(recipe: Recipe, request: TrainRequest, kube: KubeSettings, nodes: int, name: str) -> int:
    """How few pods an elastic run goes on with. Raises PlanError."""
    least = kube.min_nodes
    if least is None:
        return nodes
    if name != ELASTIC:
        raise PlanError(
            f"min_nodes = {least}: only a PyTorchJob goes on with fewer pods.",
            hint=f"Leave --min-nodes and min_nodes out, or --launcher {name}.",
        )
    if not 1 <= least <= nodes:
        raise PlanError(f"min_nodes = {least}, but --nodes is {nodes}.", hint=f"It is 1 to {nodes}.")
    if not (recipe.elastic or recipe.own_script):
        raise PlanError(
            f"min_nodes: recipe '{recipe.name}' needs all of its ranks.",
            hint="Leave --min-nodes and min_nodes out; `elastic = true` in a recipe.toml of your "
            "own says that it goes on with fewer.",
        )
    if not request.max_restarts:
        raise PlanError(
            "min_nodes without --max-restarts: a run goes on with fewer pods by starting again.",
            hint="Add --max-restarts 1 or more.",
        )
    return least


def describe_cores(kube: KubeSettings, *, ppn: int) -> str:
    """Return whether the ranks of a pod have cores for themselves."""
    if ppn > kube.cpus:
        return "ranks share cores, which is slow"
    if kube.cpus.denominator == 1:
        return "guaranteed"
    return "guaranteed, but no whole cores: they are never its own"


def tell_pods(layout: Layout, kube: KubeSettings) -> tuple[Decision, ...]:
    size = f"{kube.cpu} CPUs, {kube.memory}"
    why = describe_cores(kube, ppn=layout.places[0].local_world_size)
    labels = ", ".join([*(f"{key}={value}" for key, value in kube.node_selector.items()), *kube.node_affinity])
    return (
        Decision(
            topic="pods",
            value=f"{len(layout.nodes)}, each with {size}",
            reason=f"{why}; on nodes with {labels}" if labels else why,
        ),
        Decision(topic="image", value=kube.image),
        Decision(
            topic="volume",
            value=f"{kube.claim} at {kube.mount}",
            reason=f"data, checkpoints and outputs; /dev/shm has {kube.shm}",
        ),
        Decision(
            topic="ranks",
            value=str(layout.world_size),
            reason=f"{layout.places[0].local_world_size} in each pod, threads of each: {layout.places[0].threads}",
        ),
    )


def training_of(
    request: TrainRequest, inputs: Inputs, stack: Stack, backend: Backend, *, precision: str, layout: Layout
) -> Training:
    """Raises PlanError, RequestError."""
    recipe = inputs.recipe
    if request.ipex:
        checks.check_ipex(recipe, stack, precision=precision, ranks=layout.world_size)
    return Training(
        recipe=recipe,
        settings=recipe.settings(request.preset, inputs.settings),
        stack=stack,
        backend=backend,
        precision=precision,
        layout=layout,
    )
