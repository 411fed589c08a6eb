"""Load the settings of Kubernetes from orch-k8s.toml and --k8s KEY=VALUE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import create_model

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.model.printable import one_line
from orchestrator.targets.kubernetes.settings import KubernetesSettings

FILE = Path("orch-k8s.toml")
TYPES: Mapping[str, Any] = get_type_hints(KubernetesSettings)
# What other options of the command line set.
OPTIONS = {"image": "Use --image NAME.", "min_nodes": "Use --min-nodes K."}
NAMES = tuple(name for name in TYPES if name not in OPTIONS)
SWITCHES = {"true": True, "false": False}  # values of switches
TABLE, LIST = Mapping[str, str], tuple[str, ...]  # set as --k8s env.NAME=VALUE, and with entries separated by commas
APPENDED = ("node_affinity",)  # entries contain commas: each --k8s appends one
TOML_TYPES = {TABLE: dict[str, str], LIST: list[str]}
FILE_FIELDS: Any = {name: (TOML_TYPES.get(kind, kind), None) for name, kind in TYPES.items()}
KubernetesFile = create_model("KubernetesFile", __base__=StrictModel, **FILE_FIELDS)


def kubernetes_settings(path: Path | None, assignments: list[str], image: str | None = None) -> KubernetesSettings:
    """Return the settings of a file, overridden by assignments.

    Args:
        path: the file, or None for orch-k8s.toml in the current folder, if it exists.
        assignments: of the form KEY=VALUE.
        image: the value of --image; None if the option is not used.

    Raises:
        RequestError: if the file or an assignment is invalid.
    """
    settings = KubernetesSettings()
    values = read_toml(path, KubernetesFile) if path else read_current_folder_toml(FILE, KubernetesFile, "--k8s-file")
    if values is not None:
        changed: dict[str, Any] = values.model_dump(exclude_unset=True)
        changed |= {name: tuple(value) for name, value in changed.items() if isinstance(value, list)}
        settings = replace(settings, **changed)
    for assignment in assignments:
        settings = with_assignment(settings, assignment)
    return settings if image is None else replace(settings, image=image)


def read_patch(path: Path | None) -> tuple[dict[str, Any], ...]:
    """Return the operations of a patch file in YAML or JSON.

    Raises:
        RequestError: if it cannot be read, or is not a list of operations.
    """
    if path is None:
        return ()
    try:
        operations = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(
            f"--k8s-patch {path}: {one_line(str(error))}", hint="Name a readable file of YAML or JSON in UTF-8."
        ) from None
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise RequestError(
            f"--k8s-patch {path}: expected a list of operations.",
            hint="Example: - {kind: Job, op: add, path: /spec/template/spec/hostNetwork, value: true}",
        )
    return tuple(operations)


def with_assignment(settings: KubernetesSettings, assignment: str) -> KubernetesSettings:
    """Return the settings with one value replaced, or one list entry added."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise RequestError(f"--k8s {assignment}: expected KEY=VALUE.", hint="Example: --k8s memory=64Gi")
    table, dot, key = name.partition(".")
    changed: dict[str, Any]
    if dot and TYPES.get(table) == TABLE:
        changed = {table: {**getattr(settings, table), key: text}}
        return replace(settings, **changed)
    if name in APPENDED:
        changed = {name: (*getattr(settings, name), text)}
        return replace(settings, **changed)
    if name not in NAMES or TYPES[name] == TABLE:
        hint = f"Write --k8s {name}.NAME=VALUE." if name in NAMES else OPTIONS.get(name, "")
        raise RequestError(f"--k8s {name}: unknown key.", hint=hint or did_you_mean(name, NAMES))
    return replace(settings, **{name: parse(name, text)})


def parse(name: str, text: str) -> Any:
    if TYPES[name] == LIST:
        return tuple(item for item in text.split(",") if item)
    if TYPES[name] is bool:
        if text not in SWITCHES:
            raise RequestError(f"--k8s {name}={text}: expected true or false.")
        return SWITCHES[text]
    if TYPES[name] is not int:
        return text
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"--k8s {name}={text}: expected a number.") from None
