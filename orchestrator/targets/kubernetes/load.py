"""Load the settings of Kubernetes from orch-k8s.toml and --k8s KEY=VALUE."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.model.printable import one_line
from orchestrator.targets.kubernetes.settings import KubernetesSettings

FILE = Path("orch-k8s.toml")
NAMES = tuple(field.name for field in fields(KubernetesSettings) if field.name != "image")
NUMBERS = ("uid", "ttl", "gpu")
# What other options of the command line set.
OPTIONS = {"image": "Use --image NAME.", "min_nodes": "Use --min-nodes K."}
SWITCHES = {"true": True, "false": False}  # values of switches
SWITCHED = ("share_cores",)
TABLES = ("node_selector", "env", "secret_env")  # set as --k8s env.NAME=VALUE
LISTS = ("pull_secrets", "tolerations", "volumes")  # separated by commas
APPENDED = ("node_affinity",)  # entries contain commas: each --k8s appends one


class KubernetesFile(StrictModel):
    """The content of orch-k8s.toml, with the fields of KubernetesSettings."""

    image: str | None = None
    context: str | None = None
    namespace: str | None = None
    cpu: str | None = None
    memory: str | None = None
    gpu: int | None = None
    gpu_resource: str | None = None
    shm: str | None = None
    claim: str | None = None
    mount: str | None = None
    storage: str | None = None
    storage_class: str | None = None
    root: str | None = None
    python: str | None = None
    files: str | None = None
    uid: int | None = None
    ttl: int | None = None
    token_secret: str | None = None
    pull_secrets: list[str] | None = None
    service_account: str | None = None
    priority_class: str | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    queue: str | None = None
    spread: str | None = None
    pack: str | None = None
    node_affinity: list[str] | None = None
    tolerations: list[str] | None = None
    runtime_class: str | None = None
    volumes: list[str] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    secret_env: dict[str, str] = Field(default_factory=dict)
    share_cores: bool | None = None


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
        changed: dict[str, Any] = values.model_dump(exclude_none=True)
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
    if dot and table in TABLES:
        changed = {table: {**getattr(settings, table), key: text}}
        return replace(settings, **changed)
    if name in APPENDED:
        changed = {name: (*getattr(settings, name), text)}
        return replace(settings, **changed)
    if name not in NAMES or name in TABLES:
        hint = f"Write --k8s {name}.NAME=VALUE." if name in TABLES else OPTIONS.get(name, "")
        raise RequestError(f"--k8s {name}: unknown key.", hint=hint or did_you_mean(name, NAMES))
    return replace(settings, **{name: parse(name, text)})


def parse(name: str, text: str) -> Any:
    if name in LISTS:
        return tuple(item for item in text.split(",") if item)
    if name in SWITCHED:
        if text not in SWITCHES:
            raise RequestError(f"--k8s {name}={text}: expected true or false.")
        return SWITCHES[text]
    if name not in NUMBERS:
        return text
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"--k8s {name}={text}: expected a number.") from None
