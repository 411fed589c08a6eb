"""Read the settings of Kubernetes, the files that a request names, and those that are sent to the pods."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from orchestrator import load
from orchestrator.errors import OrchError, PlanError, RequestError, did_you_mean, first_problem
from orchestrator.files import TRAIN, pack_files
from orchestrator.load.files import read_current_folder_toml, read_toml
from orchestrator.model.printable import one_line
from orchestrator.model.project import Project
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.run_files import named_files
from orchestrator.targets.kubernetes.client import connect
from orchestrator.targets.kubernetes.options import KubernetesOptions
from orchestrator.targets.kubernetes.plan import PodInputs
from orchestrator.targets.kubernetes.run_record import location_of
from orchestrator.targets.kubernetes.settings import KubernetesSettings

FILE = Path("orch-k8s.toml")
TYPES: Mapping[str, Any] = get_type_hints(KubernetesSettings)
NAMES = tuple(name for name in KubernetesSettings.model_fields if name != "image")  # which --image sets
TABLE, LIST = Mapping[str, str], tuple[str, ...]  # set as --k8s env.NAME=VALUE, and with entries separated by commas
APPENDED = ("node_affinity",)  # entries contain commas: each --k8s appends one


def kubernetes_settings(path: Path | None, assignments: list[str], image: str | None = None) -> KubernetesSettings:
    """Return the settings of a file, overridden by assignments.

    Args:
        path: the file, or None for orch-k8s.toml in the current folder, if it exists.
        assignments: of the form KEY=VALUE.
        image: the value of --image; None if the option is not used.

    Raises:
        RequestError: if the file or an assignment is invalid.
    """
    model = KubernetesSettings
    loaded = read_toml(path, model) if path else read_current_folder_toml(FILE, model, "--k8s-file")
    values = loaded.model_dump(exclude_unset=True) if loaded else {}
    for assignment in assignments:
        add_assignment(values, assignment)
    if image is not None:
        values["image"] = image
    try:
        return model(**values)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise RequestError.about("k8s-setting", key=key, value=error.errors()[0]["input"], reason=reason) from None


def add_assignment(values: dict[str, Any], assignment: str) -> None:
    """Replace a value by that of --k8s KEY=VALUE, or add a list entry."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise RequestError(f"--k8s {assignment}: expected KEY=VALUE.", hint="Example: --k8s memory=64Gi")
    table, dot, key = name.partition(".")
    if dot and TYPES.get(table) == TABLE:
        values[table] = {**values.get(table, {}), key: text}
    elif name in APPENDED:
        values[name] = (*values.get(name, ()), text)
    elif name in NAMES and TYPES[name] != TABLE:
        values[name] = tuple(filter(None, text.split(","))) if TYPES[name] == LIST else text
    else:
        hint = f"Write --k8s {name}.NAME=VALUE." if name in NAMES else did_you_mean(name, NAMES)
        raise RequestError(f"--k8s {name}: unknown key.", hint="Use --image NAME." if name == "image" else hint)


def read_patch(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the operations of a patch file in YAML or JSON.

    Raises:
        RequestError: if it cannot be read, or is not a list of operations.
    """
    try:
        return tuple(TypeAdapter(list[dict[str, Any]]).validate_python(yaml.safe_load(path.read_text("utf-8"))))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        reason = first_problem(error)[1] if isinstance(error, ValidationError) else str(error)
        raise RequestError.about("patch-file", path=path, reason=one_line(reason)) from None


# Each run has its project in the cluster's etcd, which has some GB for everything.
MAX_PROJECT_BYTES = 8_000_000


def read(request: TrainRequest, resume: Resume | None = None) -> PodInputs:
    """Return the inputs that a request names, after reading its files.

    Raises:
        RequestError: if a file cannot be read.
    """
    options = request.options_of(KubernetesOptions)
    kubernetes = kubernetes_settings(options.k8s_file, list(options.k8s), request.image)
    if resume:  # the current context may be another one by now
        location = location_of(resume.record)
        context, namespace = kubernetes.context or location.context, kubernetes.namespace or location.namespace
        kubernetes = kubernetes.model_copy(update={"context": context, "namespace": namespace})
    configs = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube")
    loaded = load.inputs(request, image="pods", left_out=map(Path, configs.split(os.pathsep)), volume=kubernetes.mount)
    recipe, project = loaded.recipe, loaded.recipe.project
    sent_paths = (
        path
        for path in named_files(recipe, recipe.settings(request.preset, loaded.settings))
        if not (project and path == recipe.script_file)  # the project has it
        and not (Path(path).is_relative_to(TRAIN) or path.startswith(f"{kubernetes.mount}/"))
    )
    try:
        contents = {path: Path(path).read_bytes() for path in sent_paths}
        archive = packed(project) if project else b""
    except OSError as error:
        raise RequestError.about("unreadable-file-for-pods", error=error) from None
    return PodInputs(
        loaded=replace(loaded, plugins={}),  # pods have the backends of their image, not those of this machine
        kubernetes=kubernetes,
        patch=read_patch(options.k8s_patch) if options.k8s_patch else (),
        installed=query_installed(kubernetes) if request.launcher is None else (),
        contents=contents,
        project=archive,
    )


def query_installed(settings: KubernetesSettings) -> tuple[str, ...] | str:
    """Return the launchers whose kinds the cluster has, or why it could not be queried.

    The API is queried without repetitions, because a plan can be made without a cluster.
    """
    try:
        return connect(settings.context, settings.namespace, retries=0).installed_launchers()
    except OrchError as error:
        return f"no cluster could be queried ({error.message.rstrip('.')})"


def packed(project: Project) -> bytes:
    """Return a project as an archive that fits into ConfigMaps.

    Raises:
        PlanError: if it is too large.
        OSError: if a file cannot be read.
    """
    folder, buffer = Path(project.folder), io.BytesIO()
    pack_files(buffer, folder, [folder / name for name in project.files])
    archive = buffer.getvalue()
    if len(archive) > MAX_PROJECT_BYTES:
        sizes = {name: (folder / name).lstat().st_size for name in project.files}
        size, limit, largest = len(archive) / 1e6, MAX_PROJECT_BYTES / 1e6, load.largest_files(sizes)
        raise PlanError.about("project-for-pods", folder=folder, size=size, limit=limit, largest=largest)
    return archive
