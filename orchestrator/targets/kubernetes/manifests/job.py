"""Describe a run for the launchers of Kubernetes: its files, its ConfigMap and its command. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.settings import KubernetesSettings

CONFIG = "pod.json"
# etcd accepts 1.5 MiB, a ConfigMap 1 MiB in all; base64 turns 3 bytes into 4.
MAX_BYTES = 700_000
PROJECT = "project"  # folder with the parts of the project, below the mounted ConfigMaps
PART = "part"
PART_BYTES = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """A run, as the launchers of Kubernetes need it."""

    run_id: str
    settings: KubernetesSettings
    nodes: int = 1
    ppn: int = 1
    min_nodes: int = 1
    threads: int
    max_restarts: int = 0
    script: tuple[str, ...] = ()  # command of a rank, beginning with the script
    config: Mapping[str, Any] = field(default_factory=dict)  # content of pod.json
    record: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)  # by path below the mounted ConfigMap
    project: bytes = b""  # a gzipped tar archive of the user's project, or nothing

    @property
    def name(self) -> str:
        return names.job_name(self.run_id)

    @property
    def config_map(self) -> str:
        return f"{self.name}-files"

    def project_map(self, index: int) -> str:
        """Return the name of the ConfigMap with a part of the project."""
        return f"{self.name}-{PROJECT}-{index}"

    def metadata(self, name: str | None = None) -> Object:
        return {
            "name": name or self.name,
            **({"namespace": self.settings.namespace} if self.settings.namespace else {}),
            "labels": names.labels(self.run_id),
        }

    def pod_command(self) -> list[str]:
        """Return the command of a pod: train/node.py of the image."""
        settings = self.settings
        program = f"{settings.root}/train/node.py"
        return [settings.python, program, "pod", "torchrun", f"{settings.files}/{CONFIG}"]


def trial_job(settings: KubernetesSettings, name: str = "orch-check") -> KubernetesJob:
    """Return a run of one pod without files, for objects that belong to no run."""
    return KubernetesJob(run_id=name, settings=settings, threads=max(1, int(settings.cpus)))


def literal(text: str) -> str:
    """Escape an argument or a variable of a container, in which Kubernetes expands $(NAME)."""
    return text.replace("$", "$$")


def config_map(job: KubernetesJob) -> Object:
    """Return the ConfigMap with pod.json, the run's record, and the user's files.

    Keys are numbered, because paths may contain characters that keys must not.

    Raises:
        PlanError: if the files are too large.
    """
    texts = {CONFIG: as_json(job.config), "run.json": json.dumps(job.record) + "\n"}
    binary: dict[str, str] = {}
    for index, content in enumerate(job.files.values()):
        try:
            texts[f"file-{index}"] = content.decode()
        except UnicodeDecodeError:
            binary[f"file-{index}"] = base64.b64encode(content).decode()
    size = sum(len(text.encode()) for text in (*texts.values(), *binary.values()))
    if size > MAX_BYTES:
        raise PlanError(
            f"The run's files have {size / 1000:.0f} kB; at most {MAX_BYTES // 1000} kB can be sent.",
            hint=f"Copy the data to the volume, and use its path there: {job.settings.mount}/data/...",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": job.metadata(job.config_map),
        "data": texts,
        **({"binaryData": binary} if binary else {}),
    }


def project_parts(archive: bytes) -> tuple[bytes, ...]:
    """Return the parts of an archive, each of which fits into a ConfigMap."""
    return tuple(archive[start : start + PART_BYTES] for start in range(0, len(archive), PART_BYTES))


def part_paths(archive: bytes) -> tuple[str, ...]:
    """Return the paths of the parts below the mounted ConfigMaps."""
    return tuple(f"{PROJECT}/{index}" for index in range(len(project_parts(archive))))


def project_maps(job: KubernetesJob) -> tuple[Object, ...]:
    """Return the ConfigMaps with the parts of the user's project."""
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": with_label(job.metadata(job.project_map(index)), names.PART, PROJECT),
            "binaryData": {PART: base64.b64encode(part).decode()},
        }
        for index, part in enumerate(project_parts(job.project))
    )


def with_label(metadata: Object, key: str, value: str) -> Object:
    return {**metadata, "labels": {**metadata["labels"], key: value}}


def files_volume(job: KubernetesJob) -> Object:
    """Return the source of the volume with the files of the ConfigMaps."""
    files = {"name": job.config_map, "items": items(job)}
    parts = [
        {"name": job.project_map(index), "items": [{"key": PART, "path": path}]}
        for index, path in enumerate(part_paths(job.project))
    ]
    if not parts:
        return {"configMap": files}
    return {"projected": {"sources": [{"configMap": source} for source in (files, *parts)]}}


def items(job: KubernetesJob) -> list[Object]:
    """Return the file of each key of the ConfigMap."""
    user_files = {f"file-{index}": path for index, path in enumerate(job.files)}
    paths = {CONFIG: CONFIG, "run.json": "run.json"} | user_files
    return [{"key": key, "path": path} for key, path in paths.items()]


def as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
