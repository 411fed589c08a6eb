"""TrainRequest -> Plan of a run on Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from orchestrator import choices
from orchestrator.backend import Backend, backend_of
from orchestrator.card import run_card
from orchestrator.errors import PlanError, did_you_mean
from orchestrator.kube import card, names
from orchestrator.kube.job import KubeJob, config_map
from orchestrator.kube.place import KubePlace
from orchestrator.kube.quantity import plain
from orchestrator.kube.settings import KubeSettings
from orchestrator.launchers.kubernetes_jobs import KINDS
from orchestrator.layout import Layout
from orchestrator.plan import ApplyObjects, Decision, Plan, Target
from orchestrator.plan_train import Resume, TrainRequest, request_key, tell_resume, tell_stack
from orchestrator.rank_files import TIMEOUT_SECONDS
from orchestrator.recipe import Recipe, Value, as_arguments
from orchestrator.stack import Stack

CONFIG_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSite:
    """A new run. `namespace` and `context`: those really used. `contents`: files of this machine
    that the run needs and the image does not have, path -> content."""

    run_id: str
    train_here: str
    started_by: str
    created: float
    contents: Mapping[str, bytes]


def plan_kube(
    request: TrainRequest,
    *,
    launcher: str,
    settings: KubeSettings,
    recipe: Recipe,
    stack: Stack,
    site: KubeSite,
    resume: Resume | None = None,
) -> Plan:
    """Decide how to run a request. Raises PlanError, RequestError."""
    check_request(request, launcher)
    settings.check()
    choices.check_recipe_fits(recipe, stack)
    stack = stack.for_backend(stack.backend(request.backend))
    backend = for_pods(backend_of(stack), launcher, settings)
    precision = choose_precision(recipe, request)
    layout = lay_out(request, launcher, settings)
    if request.ipex:
        choices.check_ipex(recipe, stack, precision=precision.value, ranks=layout.world_size)
    recipe_settings = recipe.settings(request.preset, request.settings)
    files = Files.of(site, settings)
    run_dir = f"{settings.mount}/runs/{site.run_id}"
    output = resume.output_dir if resume else f"{run_dir}/output"
    output_dir = None if recipe.own_script else output
    script = command(
        recipe, request, precision=precision.value, output_dir=output_dir,
        paths=files.paths_of(recipe, recipe_settings), settings=recipe_settings,
    )  # fmt: skip
    plan = Plan(
        run_id=site.run_id,
        node0=Target(node=layout.nodes[0]),
        nodes=tuple(Target(node=node) for node in layout.nodes),
        run_dir=run_dir,
        train=f"{settings.root}/train",
        python=settings.python,
        started_by=site.started_by,
        created=site.created,
        key=request_key(
            request,
            recipe=recipe,
            settings=recipe_settings,
            hosts=("k8s", settings.context or "", settings.namespace or "", settings.claim),
            names=(stack.name, backend.name, precision.value, launcher, request.nodes or ""),
        ),
        recipe=recipe.name,
        source=recipe.script,
        stack=stack.name,
        fingerprints={},
        settings=recipe_settings,
        script_args=request.script_args,
        resumes=recipe.resumes,
        output_dir=output_dir,
        backend=backend.name,
        precision=precision.value,
        layout=layout,
        decisions=(
            Decision(topic="run", value=site.run_id),
            *tell_stack(stack),
            *tell_pods(layout, settings),
            tell_launcher(launcher, settings),
            Decision(topic="backend", value=backend.name, reason=backend.summary),
            precision,
            tell_preload(stack),
            *tell_resume(resume),
        ),
        steps=(),
        kube=place_of(site.run_id, launcher, settings),
    )
    config = pod_config(
        plan, request, launcher=launcher, settings=settings, backend=backend, preload=stack.preload
    )
    job = KubeJob(
        run_id=site.run_id,
        settings=settings,
        nodes=len(layout.nodes),
        ppn=len(layout.places) // len(layout.nodes),
        min_nodes=least_nodes(recipe, request, settings, len(layout.nodes)),
        threads=layout.places[0].threads,
        max_restarts=request.max_restarts,
        script=script,
        config=config,
        card=card.short(run_card(plan)),
        files=files.carried(settings),
    )
    return replace(
        plan, steps=(ApplyObjects(objects=(config_map(job), *KINDS[launcher].launch(job))),)
    )


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
    if backend.name != "ccl" or hydra:
        return backend
    # Started by hydra or not is what oneCCL asks first; CCL_LOCAL_RANK then comes from us.
    env = dict(backend.env) | {"CCL_ATL_TRANSPORT": "ofi", "CCL_PROCESS_LAUNCHER": "none"}
    return replace(backend, summary=f"{backend.summary}, over libfabric", env=tuple(env.items()))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found in a pod."""

    paths: Mapping[str, str]
    contents: Mapping[str, bytes]
    train_here: str
    train: str

    @staticmethod
    def of(site: KubeSite, settings: KubeSettings) -> Files:
        paths = {
            path: f"{settings.files}/files/{index}/{PurePosixPath(path).name}"
            for index, path in enumerate(site.contents)
        }
        return Files(
            paths=paths,
            contents=site.contents,
            train_here=site.train_here,
            train=f"{settings.root}/train",
        )

    def there(self, path: str) -> str:
        """A file that came along, one of the image, or a path that is the pod's already."""
        if path in self.paths:
            return self.paths[path]
        inside = PurePosixPath(path)
        if inside.is_relative_to(self.train_here):
            return f"{self.train}/{inside.relative_to(self.train_here)}"
        return path

    def paths_of(self, recipe: Recipe, settings: Mapping[str, Value]) -> dict[str, str]:
        named = [str(settings[name]) for name in recipe.paths if name in settings]
        return {path: self.there(path) for path in (recipe.script, *named)}

    def carried(self, settings: KubeSettings) -> dict[str, bytes]:
        """Path below the mounted ConfigMap -> content."""
        return {
            str(PurePosixPath(self.paths[path]).relative_to(settings.files)): content
            for path, content in self.contents.items()
        }


def command(
    recipe: Recipe,
    request: TrainRequest,
    *,
    precision: str,
    output_dir: str | None,
    paths: Mapping[str, str],
    settings: Mapping[str, Value],
) -> tuple[str, ...]:
    """The script and its arguments, as a rank gets them."""
    mapped = {
        name: paths[str(value)] if name in recipe.paths else value
        for name, value in settings.items()
    }
    return (
        paths[recipe.script],
        *as_arguments(mapped),
        *recipe.precisions.get(precision, ()),
        *(["--use_ipex"] if request.ipex else []),
        *([f"--output_dir={output_dir}"] if output_dir else []),
        *request.script_args,
    )


def place_of(run_id: str, launcher: str, settings: KubeSettings) -> KubePlace:
    kind = KINDS[launcher]
    return KubePlace(
        context=settings.context,
        namespace=settings.namespace or "default",
        job=names.job_name(run_id),
        launcher=launcher,
        group=kind.group,
        version=kind.version,
        plural=kind.plural,
        claim=settings.claim,
        mount=settings.mount,
        image=settings.image,
        uid=settings.uid,
        python=settings.python,
        pull_secrets=settings.pull_secrets,
    )


def pod_config(
    plan: Plan,
    request: TrainRequest,
    *,
    launcher: str,
    settings: KubeSettings,
    backend: Backend,
    preload: tuple[str, ...],
) -> dict[str, Any]:
    """pod.json: what train/pod.py needs to know, once, for all pods."""
    mpi = settings.mpi or ("Intel" if launcher == "mpijob" else None)
    return {
        "schema": CONFIG_SCHEMA,
        "run_id": plan.run_id,
        "run_dir": plan.run_dir,
        "mpi": mpi,
        "pods": len(plan.layout.nodes),
        "word": plan.layout.nodes[0].rpartition("-")[0],
        "ppn": plan.layout.places[0].local_world_size,
        "cpus": float(settings.cpus),
        "threads": plan.layout.places[0].threads,
        "backend": backend.name,
        "backend_module": backend.module,
        "timeout_seconds": TIMEOUT_SECONDS,
        "env": {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **dict(backend.env)},
        "preload": list(preload),
        "stack": plan.stack,
        "needs_bf16": plan.precision == "bf16" and not request.allow_slow_bf16,
        "stall_timeout": request.stall_timeout,
        "max_restarts": request.max_restarts,
        "ssh": {"folder": settings.ssh_folder, "port": settings.ssh_port},
    }


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
