"""Read the files that a request names, and those that are sent to the pods."""

from __future__ import annotations

from pathlib import Path

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.model.recipe import Recipe, Value
from orchestrator.paths import TRAIN
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.sent_files import named_files
from orchestrator.runs.resume import plan_or_resume
from orchestrator.stacks.image import python_for
from orchestrator.targets.identity import new_identity
from orchestrator.targets.kubernetes import installed_kinds
from orchestrator.targets.kubernetes.decisions import Inputs
from orchestrator.targets.kubernetes.load import kubernetes_settings, read_patch
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import Installed
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.plan import KubernetesSite, plan_kubernetes
from orchestrator.targets.kubernetes.settings import KubernetesSettings


def plan(request: TrainRequest) -> Plan:
    """Return the plan of a request; the cluster is only queried for its kinds of jobs."""
    inputs = read(request)
    values = inputs.recipe.settings(request.preset, inputs.settings)
    site = new_site(inputs.recipe, values, inputs.kubernetes)
    return plan_or_resume(request, lambda resume: plan_kubernetes(request, inputs, site, resume))


def read(request: TrainRequest) -> Inputs:
    options = request.options_of(KubernetesOptions)
    kubernetes = kubernetes_settings(options.k8s_file, list(options.k8s))
    recipe = load.recipe(request.recipe, tuple(map(Path, request.recipe_path)), module=request.module)
    stack = load.stack(request.stack)
    load.check_script(recipe, request.script_args, load.RanksPython(version=python_for(stack), image=True))
    return Inputs(
        recipe=recipe,
        stack=stack,
        kubernetes=kubernetes,
        settings=recipe_settings(request.settings, recipe, kubernetes),
        patch=read_patch(options.k8s_patch),
        installed=installed_kinds.query_installed(kubernetes) if request.launcher is None else Installed(),
    )


def recipe_settings(assignments: tuple[str, ...], recipe: Recipe, settings: KubernetesSettings) -> dict[str, Value]:
    """Return the settings of --set, in which a path may also be one on the volume."""
    on_volume = {
        name: text
        for name, _, text in (assignment.partition("=") for assignment in assignments)
        if name in recipe.paths and text.startswith(f"{settings.mount}/")
    }
    local = [assignment for assignment in assignments if assignment.partition("=")[0] not in on_volume]
    return {**load.settings(local, recipe), **on_volume}


def new_site(recipe: Recipe, values: dict[str, Value], settings: KubernetesSettings) -> KubernetesSite:
    new = new_identity()
    return KubernetesSite(
        run_id=names.run_id(new.stamp, recipe.name, new.suffix),
        train_here=str(TRAIN),
        started_by=new.started_by,
        created=new.created,
        contents={path: content(path) for path in named_files(recipe, values) if is_sent(path, settings)},
    )


def is_sent(path: str, settings: KubernetesSettings) -> bool:
    """Return whether a path is a file of this machine that the image does not have."""
    return not Path(path).is_relative_to(TRAIN) and not path.startswith(f"{settings.mount}/")


def content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.",
            hint="orch sends this file to the pods. Name a file that you may read.",
        ) from None
