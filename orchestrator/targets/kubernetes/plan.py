"""Plan a run on Kubernetes: its decisions, and the objects to create."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.environment import ALWAYS
from orch_node.protocol.pod import PodProject
from orch_node.protocol.record import RunNode

from orchestrator.model.decision import Decision, all_decisions
from orchestrator.planning.plan import ApplyObjects, Object, Plan
from orchestrator.planning.request import Resume, Site, TrainRequest
from orchestrator.planning.run_files import TIMEOUT_SECONDS
from orchestrator.planning.sent_files import module_folders, project_copy
from orchestrator.planning.training import (
    explain_restarts,
    new_plan,
    output_of,
    rank_variables,
    run_precision,
    script_command,
)
from orchestrator.targets.kubernetes import run_record as run_records
from orchestrator.targets.kubernetes.decisions import PodInputs, ResolvedPods, describe_pods, resolve_pods
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.job import (
    Files,
    KubernetesJob,
    config_map,
    part_paths,
    project_maps,
    with_label,
)
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.patch import describe_patch, patched
from orchestrator.targets.kubernetes.run_record import JobLocation
from orchestrator.targets.kubernetes.settings import KubernetesSettings

CONFIG_SCHEMA = 1


def plan_kubernetes(request: TrainRequest, inputs: PodInputs, site: Site) -> Plan:
    """Return the plan of a request.

    Raises:
        PlanError: if the request cannot be fulfilled.
        RequestError: if it is malformed.
    """
    pods = resolve_pods(request, inputs, site.resume)
    resolved = pods.resolved
    output = output_of(resolved.recipe, site.run_dir)
    files = files_of(inputs, site)
    script = script_command(request, resolved, files.paths_of(resolved.recipe, resolved.settings), output)
    decisions = (
        *resolved.stack.decisions,
        *describe_pods(pods),
        *all_decisions(resolved.layout, pods.launcher),
        *describe_elastic(request, pods),
        *all_decisions(resolved.backend, resolved.precision, resolved.preload),
        *describe_patch(inputs.patch),
    )
    wait_limit = request.options_of(KubernetesOptions).wait_limit
    job_location = replace(location(site.run_id, pods.launcher.value, pods.kubernetes), wait_limit=wait_limit)
    plan = new_plan(
        request,
        resolved,
        site,
        decisions=decisions,
        output=output,
        nodes=tuple(RunNode(node=node) for node in resolved.layout.value.nodes),
        python=pods.kubernetes.python,
        target="kubernetes",
        location=values.record(job_location),
    )
    job = job_of(request, plan, pods, site, script=script, files=files, project=inputs.project)
    *objects, job_object = (config_map(job), *project_maps(job), *KINDS[pods.launcher.value].launch(job))
    patched_objects = patched((*objects, in_queue(job_object, inputs.kubernetes.queue)), inputs.patch)
    return replace(plan, steps=(ApplyObjects(objects=patched_objects),))


def in_queue(job: Object, queue: str | None) -> Object:
    """Return the job with the label of its queue, for which Kueue suspends it until there is quota."""
    if queue is None:
        return job
    return {**job, "metadata": with_label(job["metadata"], names.QUEUE, queue)}


def files_of(inputs: PodInputs, site: Site) -> Files:
    """Return the paths in a pod of local files; the script of a project is in the run's copy of it."""
    recipe = inputs.loaded.recipe
    files = Files.from_contents(inputs.contents, recipe, site.train_here, inputs.kubernetes)
    if recipe.project is None or not recipe.script_file:
        return files
    script = recipe.project.path_in(project_copy(site.run_dir), recipe.script_file)
    return replace(files, paths={**files.paths, recipe.script_file: script})


def job_of(
    request: TrainRequest,
    plan: Plan,
    pods: ResolvedPods,
    site: Site,
    *,
    script: tuple[str, ...],
    files: Files,
    project: bytes,
) -> KubernetesJob:
    layout = plan.layout
    return KubernetesJob(
        run_id=plan.run.run_id,
        settings=pods.kubernetes,
        nodes=len(layout.nodes),
        ppn=layout.rank_places[0].local_world_size,
        min_nodes=pods.min_nodes,
        threads=layout.rank_places[0].threads,
        max_restarts=request.max_restarts,
        script=script,
        config=pod_config(request, plan, pods, project, site),
        record=run_records.without_lists(plan.run),
        files=files.sent_contents(pods.kubernetes),
        project=project,
    )


def describe_elastic(request: TrainRequest, pods: ResolvedPods) -> tuple[Decision, ...]:
    """Return the decision about restarts of a run that may continue with fewer pods."""
    fewer = pods.min_nodes < len(pods.resolved.layout.value.nodes)
    return explain_restarts(request.max_restarts if fewer else 0, pods.resolved.recipe, pods.min_nodes)


def location(run_id: str, launcher: str, settings: KubernetesSettings) -> JobLocation:
    """Return the location of a new run in the cluster of the settings."""
    kind = KINDS[launcher]
    return JobLocation(
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
        service_account=settings.service_account,
        tolerations=settings.tolerations,
    )


def pod_project(plan: Plan, archive: bytes, settings: KubernetesSettings, resume: Resume | None) -> PodProject | None:
    """Return what the pods need to unpack the project."""
    if plan.origin.project is None:
        return None
    copy = project_copy(plan.run.run_dir)
    replaced, removed = changed_files(plan, resume)
    return PodProject(
        parts=tuple(f"{settings.files}/{path}" for path in part_paths(archive)),
        sha256=hashlib.sha256(archive).hexdigest(),
        copy=copy,
        working_directory=plan.origin.project.working_directory(copy),
        replaced=replaced,
        removed=removed,
    )


def changed_files(plan: Plan, resume: Resume | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of the project that a resumed run replaces in its copy, and those that it removes."""
    project = plan.origin.project
    if project is None or resume is None or resume.project is None or not resume.sends_code:
        return (), ()
    changed = project.changes_since(resume.project)
    return tuple(name for name in changed if name in project.files), tuple(set(changed) - project.files.keys())


def pod_config(request: TrainRequest, plan: Plan, pods: ResolvedPods, archive: bytes, site: Site) -> dict[str, Any]:
    """Return the content of pod.json, which all pods of the run read."""
    kubernetes, resolved = pods.kubernetes, pods.resolved
    backend, first = resolved.backend.value, plan.layout.rank_places[0]
    precision = run_precision(resolved, plan.run.output_dir)
    project = pod_project(plan, archive, kubernetes, site.resume)
    return {
        "schema": CONFIG_SCHEMA,
        "run_id": plan.run.run_id,
        "run_dir": plan.run.run_dir,
        "pods": len(plan.layout.nodes),
        "word": first.node.rpartition("-")[0],
        "ppn": first.local_world_size,
        "cpus": float(kubernetes.cpus),
        "threads": first.threads,
        "backend": backend.name,
        "backend_module": backend.module,
        "timeout_seconds": TIMEOUT_SECONDS,
        "env": {
            **ALWAYS,
            **dict(backend.env),
            **rank_variables(
                request, resolved.recipe, module_folders(resolved.recipe, plan.run.run_dir), settings=kubernetes.env
            ),
        },
        "preload": list(resolved.stack.value.preload),
        "stack": plan.origin.stack,
        "needs_bf16": plan.run.precision == "bf16" and not request.allow_slow_bf16,
        "stall_timeout": request.stall_timeout,
        "max_restarts": request.max_restarts,
        **({"precision": values.record(precision)} if precision else {}),
        **({"project": values.record(project)} if project else {}),
        **({"attempt": site.attempt} if site.attempt > 1 else {}),
    }
