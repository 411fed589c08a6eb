"""TrainRequest -> Plan of a run on Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import choices, choose_launch, kube_choices
from orchestrator.backend import Backend
from orchestrator.card import run_card
from orchestrator.kube import card, names
from orchestrator.kube.files import Files, command
from orchestrator.kube.job import KubeJob, config_map
from orchestrator.kube.place import KubePlace
from orchestrator.kube.settings import KubeSettings
from orchestrator.launchers.kubernetes_jobs import KINDS
from orchestrator.plan import ApplyObjects, Decision, Plan, Target
from orchestrator.plan_train import request_key, tell_resume, tell_stack
from orchestrator.rank_files import TIMEOUT_SECONDS
from orchestrator.recipe import Recipe
from orchestrator.stack import Stack
from orchestrator.train_request import Resume, TrainRequest

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
    kube_choices.check_request(request, launcher)
    settings.check()
    choices.check_recipe_fits(recipe, stack)
    chosen = choose_launch.choose_backend(stack, (), request.backend, {})
    stack = stack.for_backend(chosen.name)
    backend = kube_choices.for_pods(chosen, launcher, settings)
    precision = kube_choices.choose_precision(recipe, request)
    layout = kube_choices.lay_out(request, launcher, settings)
    if request.ipex:
        choices.check_ipex(recipe, stack, precision=precision.value, ranks=layout.world_size)
    recipe_settings = recipe.settings(request.preset, request.settings)
    files = Files.of(site.contents, site.train_here, settings)
    run_dir = f"{settings.mount}/runs/{site.run_id}"
    output = resume.output_dir if resume else f"{run_dir}/output"
    output_dir = None if recipe.own_script else output
    script = command(
        recipe, request.script_args, ipex=request.ipex,
        precision=precision.value, output_dir=output_dir,
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
            *kube_choices.tell_pods(layout, settings),
            kube_choices.tell_launcher(launcher, settings),
            Decision(topic="backend", value=backend.name, reason=backend.summary),
            precision,
            kube_choices.tell_preload(stack),
            *tell_resume(resume),
        ),
        steps=(),
        kube=place_of(site.run_id, launcher, settings),
    )
    return with_objects(
        plan, request, launcher=launcher, settings=settings,
        config=pod_config(
            plan, request, launcher=launcher, settings=settings, backend=backend,
            preload=stack.preload,
        ),
        script=script, files=files,
        least=kube_choices.least_nodes(recipe, request, settings, len(layout.nodes)),
    )  # fmt: skip


def with_objects(
    plan: Plan,
    request: TrainRequest,
    *,
    launcher: str,
    settings: KubeSettings,
    config: Mapping[str, Any],
    script: tuple[str, ...],
    files: Files,
    least: int,
) -> Plan:
    """The plan with the objects that the API gets. `config`: pod.json; `least`: with how few pods
    the run may go on."""
    layout = plan.layout
    job = KubeJob(
        run_id=plan.run_id,
        settings=settings,
        nodes=len(layout.nodes),
        ppn=len(layout.places) // len(layout.nodes),
        min_nodes=least,
        threads=layout.places[0].threads,
        max_restarts=request.max_restarts,
        script=script,
        config=config,
        card=card.short(run_card(plan)),
        files=files.carried(settings),
    )
    objects = (config_map(job), *KINDS[launcher].launch(job))
    return replace(plan, steps=(ApplyObjects(objects=objects),))


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
