"""A request for pods -> its plan: the files that it names, and those that travel with it."""

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
from orchestrator.targets.kubernetes.load import kube_patch, kube_settings
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import Installed
from orchestrator.targets.kubernetes.options import KubeOptions
from orchestrator.targets.kubernetes.plan import KubeSite, plan_kube
from orchestrator.targets.kubernetes.settings import KubeSettings


def plan(request: TrainRequest) -> Plan:
    """Read the files, decide. Of the cluster it asks at most which kinds of jobs it has."""
    inputs = read(request)
    values = inputs.recipe.settings(request.preset, inputs.settings)
    site = new_site(inputs.recipe, values, inputs.kube)
    return plan_or_resume(request, lambda resume: plan_kube(request, inputs, site, resume))


def read(request: TrainRequest) -> Inputs:
    own = request.options_of(KubeOptions)
    kube = kube_settings(own.k8s_file, list(own.k8s))
    recipe = load.recipe(request.recipe, tuple(map(Path, request.recipe_path)), module=request.module)
    stack = load.stack(request.stack)
    load.check_script(recipe, request.script_args, load.RanksPython(version=python_for(stack), image=True))
    return Inputs(
        recipe=recipe,
        stack=stack,
        kube=kube,
        settings=chosen_settings(request.settings, recipe, kube),
        patch=kube_patch(own.k8s_patch),
        installed=installed_kinds.ask(kube) if request.launcher is None else Installed(),
    )


def chosen_settings(pairs: tuple[str, ...], recipe: Recipe, settings: KubeSettings) -> dict[str, Value]:
    """--set, where a path may also be one on the volume."""
    there = {
        name: text
        for name, _, text in (pair.partition("=") for pair in pairs)
        if name in recipe.paths and text.startswith(f"{settings.mount}/")
    }
    here = [pair for pair in pairs if pair.partition("=")[0] not in there]
    return {**load.settings(here, recipe), **there}


def new_site(recipe: Recipe, values: dict[str, Value], settings: KubeSettings) -> KubeSite:
    new = new_identity()
    return KubeSite(
        run_id=names.run_id(new.stamp, recipe.name, new.suffix),
        train_here=str(TRAIN),
        started_by=new.started_by,
        created=new.created,
        contents={path: content(path) for path in named_files(recipe, values) if is_own(path, settings)},
    )


def is_own(path: str, settings: KubeSettings) -> bool:
    """Whether it is a file of this machine that no image has."""
    return not Path(path).is_relative_to(TRAIN) and not path.startswith(f"{settings.mount}/")


def content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.",
            hint="It is sent to the pods from here: name a file that you may read.",
        ) from None
