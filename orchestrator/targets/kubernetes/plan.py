"""Plan a run on Kubernetes: its decisions, and the objects to create, with the changes of the user."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.environment import ALWAYS
from orch_node.protocol.pod import PodConfig, PodProject
from orch_node.protocol.record import RunNode

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Layout
from orchestrator.model.decision import GPUS, Choice, Decision, all_decisions
from orchestrator.model.process_group import uses_gpus
from orchestrator.model.recipe import Recipe
from orchestrator.planning.launchers import check_launcher_name
from orchestrator.planning.plan import ApplyObjects, Object, Plan
from orchestrator.planning.request import RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs, Resolved, RunNodes, count_nodes, later_nodes, resolve
from orchestrator.planning.run_files import TIMEOUT_SECONDS, in_train, module_folders, project_copy, working_directory
from orchestrator.planning.training import new_plan, rank_variables, restart_decisions, run_precision, script_command
from orchestrator.targets.kubernetes import manifests, names
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.run_record import new_location, without_lists
from orchestrator.targets.kubernetes.settings import KubernetesSettings

MAX_PODS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInputs:
    """The files and settings from which a run in pods is planned."""

    loaded: Inputs  # the files that the request names
    kubernetes: KubernetesSettings
    installed: tuple[str, ...] | str = ()  # see manifests.default_kind(); queried unless the request has a launcher
    patch: tuple[Operation, ...] = ()  # of --k8s-patch
    contents: Mapping[str, bytes] = field(default_factory=dict)  # by path: the files that the image does not have
    project: bytes = b""  # a gzipped tar archive of the recipe's project


def choose_launcher(request: TrainRequest, installed: tuple[str, ...] | str) -> Choice[str]:
    """Return the kind of the job.

    Raises:
        PlanError: if it does not exist, or the cluster has none that can run the request.
    """
    launcher, reason = request.launcher, "torchrun"
    if launcher is not None:
        check_launcher_name(launcher, manifests.KINDS, "Kubernetes")
    else:
        launcher, default_reason = manifests.default_kind(installed, elastic=bool(request.min_nodes))
        reason = f"torchrun; {default_reason}"
    kind = manifests.KINDS[launcher]
    return Choice(launcher, (Decision(topic="launcher", value=f"{kind.kind} {kind.api}", reason=reason),))


def pods_of(request: TrainRequest, count: int, launcher: str, kubernetes: KubernetesSettings) -> RunNodes:
    """Return the pods, with an equal share of its pod's CPUs for each rank.

    Raises:
        PlanError: if a pod has too few CPUs.
    """
    on_gpus = uses_gpus(request.backend, {})
    if on_gpus and not kubernetes.gpu:
        raise PlanError.about("pods-without-gpus", backend=request.backend)
    default = kubernetes.gpu if on_gpus else 1
    ppn = default if request.ppn is None else request.ppn
    if ppn > kubernetes.cpus and not kubernetes.share_cores:
        raise PlanError.about("cpus-of-pods", ppn=ppn, cpus=float(kubernetes.cpus))
    threads = max(1, int(kubernetes.cpus // max(1, ppn)))
    prefix = "node" if launcher == "trainjob" else "worker"
    reason = f"{ppn} in each pod, threads of each: {threads}"
    gpus, software = kubernetes.gpu, "the image has"
    return later_nodes(prefix, count, ppn=ppn, gpus=gpus, threads=threads, reason=reason, software=software)


def check_min_nodes(recipe: Recipe, request: TrainRequest, launcher: str) -> None:
    """Raise PlanError for --min-nodes if the run cannot continue with fewer pods."""
    if not request.min_nodes:
        return
    if launcher != manifests.ELASTIC:
        raise PlanError.about("fewer-pods-of-kind", count=request.min_nodes, launcher=launcher)
    if not (recipe.elastic or recipe.own_script):
        raise PlanError.about("fewer-pods-of-recipe", recipe=recipe.name)


def describe_pods(layout: Layout, kubernetes: KubernetesSettings) -> tuple[Decision, ...]:
    """Return the decisions about the pods, their image and volume."""
    size = f"{kubernetes.cpu} CPUs, {kubernetes.memory}"
    gpus = f"{kubernetes.gpu} {kubernetes.gpu_resource} in each pod"
    cores = "guaranteed"
    if layout.rank_places[0].local_world_size > kubernetes.cpus:
        cores = "ranks share cores, which is slow"
    elif kubernetes.cpus.denominator != 1:
        cores = "guaranteed, but not whole cores, which are never exclusive"
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


def plan_kubernetes(request: TrainRequest, inputs: PodInputs, run_paths: RunPaths) -> Plan:
    """Return the plan of a request.

    Raises:
        PlanError: if the request cannot be fulfilled.
        RequestError: if it is malformed.
    """
    kubernetes, hint = inputs.kubernetes, "Example: --nodes 4 starts four pods of --ppn ranks each."
    count = count_nodes(request, None, limit=MAX_PODS, hint=hint)
    kubernetes.check_image()
    launcher = choose_launcher(request, inputs.installed)
    check_min_nodes(inputs.loaded.recipe, request, launcher.value)
    no_mpi = Decision(topic="mpi", value="")
    pods = pods_of(request, count, launcher.value, kubernetes)
    resolved = resolve(request, inputs.loaded, pods, run_paths, launcher="torchrun", mpi=no_mpi)
    layout = resolved.layout.value
    script = script_command(resolved, pod_paths(inputs, resolved))
    decisions = (
        *resolved.stack.decisions,
        *describe_pods(layout, kubernetes),
        *all_decisions(resolved.layout, launcher),
        *(restart_decisions(resolved) if 0 < request.min_nodes < len(layout.nodes) else ()),
        *all_decisions(resolved.backend, resolved.precision, resolved.preload),
        *(Decision(topic="patch", value=describe(operation), reason="--k8s-patch") for operation in inputs.patch),
    )
    wait_limit = request.options_of(KubernetesOptions).wait_limit
    job_location = replace(new_location(run_paths.run_id, launcher.value, kubernetes), wait_limit=wait_limit)
    plan = new_plan(
        resolved,
        decisions=decisions,
        nodes=tuple(RunNode(node=node) for node in layout.nodes),
        python=kubernetes.python,
        target="kubernetes",
        location=values.record(job_location),
    )
    job = manifests.KubernetesJob(
        run_id=run_paths.run_id,
        settings=kubernetes,
        nodes=len(layout.nodes),
        ppn=layout.rank_places[0].local_world_size,
        min_nodes=request.min_nodes or len(layout.nodes),
        threads=layout.rank_places[0].threads,
        max_restarts=request.max_restarts,
        script=script,
        config=values.record(pod_config(plan, inputs)),
        record=without_lists(plan.run),
        files=dict(zip(sent_names(inputs).values(), inputs.contents.values(), strict=True)),
        project=manifests.project_parts(inputs.project),
    )
    objects = (*manifests.config_maps(job), *manifests.job_objects(launcher.value, job))
    return replace(plan, steps=(ApplyObjects(objects=patched(objects, inputs.patch)),))


def sent_names(inputs: PodInputs) -> dict[str, str]:
    """Return the path of each sent file below the mounted ConfigMap."""
    recipe = inputs.loaded.recipe
    return {path: f"files/{recipe.sent_path(path, index)}" for index, path in enumerate(inputs.contents)}


def pod_paths(inputs: PodInputs, resolved: Resolved) -> dict[str, str]:
    """Return the paths in a pod of the script and of the data: sent, of the image, of the volume, of the project."""
    recipe, run_paths = resolved.recipe, resolved.run_paths
    paths = {path: f"{inputs.kubernetes.files}/{name}" for path, name in sent_names(inputs).items()}
    if recipe.project and recipe.script_file:
        paths[recipe.script_file] = recipe.project.path_in(project_copy(run_paths.run_dir), recipe.script_file)
    used = (recipe.script, *(str(resolved.settings[name]) for name in recipe.paths if name in resolved.settings))
    return {path: paths.get(path) or in_train(path, run_paths) or path for path in used}


def pod_project(plan: Plan, archive: bytes, settings: KubernetesSettings) -> PodProject | None:
    """Return what the pods need to unpack the project."""
    project = plan.project
    if project is None:
        return None
    resume = plan.resolved.run_paths.resume
    before = resume.project if resume and resume.sends_code else None
    changed = set(project.changes_since(before)) if before else set()  # in the copy of a resumed run
    parts = (manifests.part_path(index) for index in range(len(manifests.project_parts(archive))))
    return PodProject(
        parts=tuple(f"{settings.files}/{part}" for part in parts),
        sha256=hashlib.sha256(archive).hexdigest(),
        copy=project_copy(plan.run.run_dir),
        working_directory=working_directory(project, plan.run.run_dir),
        replaced=tuple(sorted(changed & project.files.keys())),
        removed=tuple(sorted(changed - project.files.keys())),
    )


def pod_config(plan: Plan, inputs: PodInputs) -> PodConfig:
    """Return the content of pod.json, which all pods of the run read."""
    kubernetes, request, resolved = inputs.kubernetes, plan.request, plan.resolved
    resume = resolved.run_paths.resume
    backend, first = resolved.backend.value, plan.layout.rank_places[0]
    folders = module_folders(resolved.recipe, plan.run.run_dir)
    return PodConfig(
        run_dir=plan.run.run_dir,
        pods=len(plan.layout.nodes),
        word=first.node.rpartition("-")[0],
        ppn=first.local_world_size,
        cpus=float(kubernetes.cpus),
        threads=first.threads,
        backend=backend.name,
        backend_module=backend.module,
        timeout_seconds=TIMEOUT_SECONDS,
        env={**ALWAYS, **backend.env, **rank_variables(resolved, folders, settings=kubernetes.env)},
        preload=resolved.stack.value.preload,
        stack=plan.resolved.stack.value.name,
        needs_bf16=plan.run.precision == "bf16" and not request.allow_slow_bf16,
        stall_timeout=request.stall_timeout,
        precision=run_precision(resolved),
        project=pod_project(plan, inputs.project, kubernetes),
        attempt=resume.attempt if resume else 1,
    )


Operation = Mapping[str, Any]


def patched(objects: tuple[Object, ...], operations: Sequence[Operation]) -> tuple[Object, ...]:
    """Return the objects with the operations applied.

    Raises:
        PlanError: if an operation cannot be applied, or changes how orch finds an object.
    """
    result = list(objects)
    kinds = [item["kind"] for item in objects]
    for operation in operations:
        kind = str(operation.get("kind"))
        if kind not in kinds:
            raise PlanError.about("patch-of-kind", kind=kind, kinds=", ".join(kinds))
        index = kinds.index(kind)
        result[index] = apply_operation(result[index], operation)
    return tuple(result)


def describe(operation: Operation) -> str:
    return f"{operation.get('op')} {operation.get('path')} of {operation.get('kind')}"


def apply_operation(before: Object, operation: Operation) -> Object:
    try:
        import jsonpatch
    except ImportError:
        raise PlanError.about("jsonpatch-package") from None
    try:
        after: Object = jsonpatch.apply_patch(before, [{k: v for k, v in operation.items() if k != "kind"}])
        is_found = identity(after) == identity(before)
    except Exception as error:  # those of jsonpatch, of its pointers, and of the object that it has made
        raise PlanError.about("patch-operation", operation=describe(operation), error=error) from None
    if not is_found:
        raise PlanError.about("patch-of-identity", operation=describe(operation))
    return after


def identity(item: Object) -> tuple[Any, ...]:
    """Return the fields by which orch finds an object again, to follow and to delete it."""
    metadata = item["metadata"]
    labels = (metadata["labels"][key] for key in (names.OWNER, names.RUN))
    return item["apiVersion"], item["kind"], metadata["name"], metadata.get("namespace"), *labels
