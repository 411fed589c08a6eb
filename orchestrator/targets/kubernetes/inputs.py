"""Read the files that a request names, and those that are sent to the pods."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.files import TRAIN, pack_files
from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.sent_files import named_files
from orchestrator.targets.identity import site_of
from orchestrator.targets.kubernetes import check
from orchestrator.targets.kubernetes.decisions import PodInputs
from orchestrator.targets.kubernetes.load import kubernetes_settings, read_patch
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import Installed
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from orchestrator.targets.kubernetes.settings import KubernetesSettings

# Each run has its project in the cluster's etcd, which has some GB for everything.
MAX_PROJECT_BYTES = 8_000_000


def plan(request: TrainRequest, resume: Resume | None = None) -> Plan:
    """Return the plan of a request; the cluster is only queried for its kinds of jobs."""
    inputs = read(request)
    site = site_of(
        resume,
        inputs.loaded.recipe.name,
        f"{inputs.kubernetes.mount}/runs",
        train=f"{inputs.kubernetes.root}/train",
        name=names.run_id,
    )
    return plan_kubernetes(request, inputs, site)


def read(request: TrainRequest) -> PodInputs:
    """Return the inputs that a request names, after reading its files."""
    options = request.options_of(KubernetesOptions)
    kubernetes = kubernetes_settings(options.k8s_file, list(options.k8s), request.image)
    kubeconfigs = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube")
    loaded = load.inputs(
        request,
        load.RankSoftware(image="pods"),
        left_out=map(Path, kubeconfigs.split(os.pathsep)),
        volume=kubernetes.mount,
    )
    recipe, project = loaded.recipe, loaded.recipe.project
    paths = named_files(recipe, recipe.settings(request.preset, loaded.settings))
    return PodInputs(
        loaded=replace(loaded, plugins={}),  # pods have the backends of their image, not those of this machine
        kubernetes=kubernetes,
        patch=read_patch(options.k8s_patch),
        installed=check.query_installed(kubernetes) if request.launcher is None else Installed(),
        contents={path: content(path) for path in paths if is_sent(path, recipe, kubernetes)},
        project=packed(project) if project else b"",
    )


def packed(project: Project) -> bytes:
    """Return a project as an archive that fits into ConfigMaps.

    Raises:
        PlanError: if it is too large.
        RequestError: if a file cannot be read.
    """
    folder, buffer = Path(project.folder), io.BytesIO()
    try:
        pack_files(buffer, folder, [folder / name for name in project.files])
    except OSError as error:
        raise unreadable(str(error.filename or folder), error) from None
    archive = buffer.getvalue()
    if len(archive) > MAX_PROJECT_BYTES:
        sizes = {name: (folder / name).lstat().st_size for name in project.files}
        raise PlanError(
            f"The project {folder} has {len(archive) / 1e6:.0f} MB compressed; at most "
            f"{MAX_PROJECT_BYTES / 1e6:.0f} MB can be sent to pods. Its largest files: {load.largest_files(sizes)}.",
            hint="Add what the run does not need to .orchignore, name a smaller folder with --project FOLDER, put data "
            "on the volume, or add the code to the image and send the script alone with --project none.",
        )
    return archive


def is_sent(path: str, recipe: Recipe, settings: KubernetesSettings) -> bool:
    """Return whether a path is a file of this machine that neither the image nor the project has."""
    if recipe.project and path == recipe.script_file:
        return False
    return not Path(path).is_relative_to(TRAIN) and not path.startswith(f"{settings.mount}/")


def content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str, error: OSError) -> RequestError:
    return RequestError(
        f"{path} cannot be read: {error.strerror}.",
        hint="orch sends this file to the pods. Name a file that you may read.",
    )
