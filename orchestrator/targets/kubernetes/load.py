"""orch-k8s.toml and --k8s KEY=VALUE -> KubeSettings."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.model.printable import one_line
from orchestrator.targets.kubernetes.settings import KubeSettings

FILE = Path("orch-k8s.toml")
NAMES = tuple(field.name for field in fields(KubeSettings))
NUMBERS = ("uid", "ssh_port", "min_nodes", "ttl")
SWITCHES = {"true": True, "false": False}  # values of those that are on or off
SWITCHED = ("share_cores",)
TABLES = ("node_selector", "env", "secret_env")  # of a name each, as --k8s env.NAME=VALUE
LISTS = ("pull_secrets", "tolerations", "volumes")  # written with commas
GROWING = ("node_affinity",)  # which have commas of their own: one with each --k8s


class KubeFile(StrictModel):
    """orch-k8s.toml; the fields mean what orchestrator.kube.settings.KubeSettings says."""

    image: str | None = None
    context: str | None = None
    namespace: str | None = None
    cpu: str | None = None
    memory: str | None = None
    shm: str | None = None
    launcher_cpu: str | None = None
    launcher_memory: str | None = None
    claim: str | None = None
    mount: str | None = None
    storage: str | None = None
    storage_class: str | None = None
    root: str | None = None
    python: str | None = None
    files: str | None = None
    user: str | None = None
    uid: int | None = None
    ssh_port: int | None = None
    mpi: str | None = None
    min_nodes: int | None = None
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


def kube_settings(path: Path | None, pairs: list[str]) -> KubeSettings:
    """The file's values (orch-k8s.toml here, if there is one), then the pairs'.

    Raises RequestError.
    """
    found = KubeSettings()
    values = read_toml(path, KubeFile) if path else read_current_folder_toml(FILE, KubeFile, "--k8s-file")
    if values is not None:
        found = replace(found, **as_tuples(values.model_dump(exclude_none=True)))
    for pair in pairs:
        found = with_pair(found, pair)
    return found


def kube_patch(path: Path | None) -> tuple[dict[str, Any], ...]:
    """A list of operations, in YAML or JSON. Raises RequestError."""
    if path is None:
        return ()
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(
            f"--k8s-patch {path}: {one_line(str(error))}",
            hint="It is a file of YAML or JSON in UTF-8, which you may read.",
        ) from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(
            f"--k8s-patch {path}: expected a list of operations.",
            hint="- {kind: Job, op: add, path: /spec/template/spec/hostNetwork, value: true}",
        )
    return tuple(found)


def as_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(one) if isinstance(one, list) else one for name, one in values.items()}


def with_pair(settings: KubeSettings, pair: str) -> KubeSettings:
    name, equals, text = pair.partition("=")
    if not equals:
        raise RequestError(f"--k8s {pair}: expected KEY=VALUE.", hint="--k8s memory=64Gi")
    table, dot, key = name.partition(".")
    changed: dict[str, Any]
    if dot and table in TABLES:
        changed = {table: {**getattr(settings, table), key: text}}
        return replace(settings, **changed)
    if name in GROWING:
        changed = {name: (*getattr(settings, name), text)}
        return replace(settings, **changed)
    if name not in NAMES or name in TABLES:
        hint = f"Write --k8s {name}.NAME=VALUE." if name in TABLES else ""
        raise RequestError(f"--k8s {name}: unknown key.", hint=hint or did_you_mean(name, NAMES))
    return replace(settings, **{name: parse(name, text)})


def parse(name: str, text: str) -> Any:
    if name in LISTS:
        return tuple(one for one in text.split(",") if one)
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
