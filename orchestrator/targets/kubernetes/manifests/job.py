"""Describe a run for the launchers of Kubernetes: its numbers, its files and their ConfigMaps. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.template import render
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
    project: tuple[bytes, ...] = ()  # the parts of a gzipped tar archive of the user's project

    @property
    def name(self) -> str:
        return names.job_name(self.run_id)

    def metadata(self, suffix: str = "", **labels: str) -> Object:
        return names.metadata(f"{self.name}{suffix}", self.settings.namespace, names.labels(self.run_id) | labels)


def trial_job(settings: KubernetesSettings, name: str = "orch-check") -> KubernetesJob:
    """Return a run of one pod without files, for objects that belong to no run."""
    return KubernetesJob(run_id=name, settings=settings, threads=max(1, int(settings.cpus)))


def config_maps(job: KubernetesJob) -> tuple[Object, ...]:
    """Return the ConfigMap with pod.json, the run's record and the user's files, and those with the user's project.

    Keys are numbered, because paths may contain characters that keys must not.

    Raises:
        PlanError: if the files are too large.
    """
    texts = {CONFIG: json.dumps(job.config, indent=1) + "\n", "run.json": json.dumps(job.record) + "\n"}
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
    (files,) = render("files", {"metadata": job.metadata("-files"), "texts": texts, "binary": binary})
    parts = ({PART: base64.b64encode(part).decode()} for part in job.project)
    return (
        files,
        *(
            config_map
            for index, part in enumerate(parts)
            for metadata in [job.metadata(f"-{PROJECT}-{index}", **{names.PART: PROJECT})]
            for config_map in render("files", {"metadata": metadata, "texts": {}, "binary": part})
        ),
    )


def project_parts(archive: bytes) -> tuple[bytes, ...]:
    """Return the parts of an archive, each of which fits into a ConfigMap."""
    return tuple(archive[start : start + PART_BYTES] for start in range(0, len(archive), PART_BYTES))


def part_path(index: int) -> str:
    """Return the path of a part of the project below the mounted ConfigMaps."""
    return f"{PROJECT}/{index}"


def file_sources(job: KubernetesJob) -> list[Object]:
    """Return the ConfigMaps of a run, with the file of each of their keys."""
    paths = {CONFIG: CONFIG, "run.json": "run.json"} | {f"file-{index}": path for index, path in enumerate(job.files)}
    items = [{"key": key, "path": path} for key, path in paths.items()]
    parts = [
        {"name": f"{job.name}-{PROJECT}-{index}", "items": [{"key": PART, "path": part_path(index)}]}
        for index in range(len(job.project))
    ]
    return [{"name": f"{job.name}-files", "items": items}, *parts]
