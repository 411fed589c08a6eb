"""Files of this machine as a pod finds them. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.settings import KubeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found in a pod."""

    paths: Mapping[str, str]
    contents: Mapping[str, bytes]
    train_here: str
    train: str

    @staticmethod
    def of(contents: Mapping[str, bytes], recipe: Recipe, train_here: str, settings: KubeSettings) -> Files:
        paths = {path: f"{settings.files}/files/{recipe.sent_path(path, index)}" for index, path in enumerate(contents)}
        return Files(paths=paths, contents=contents, train_here=train_here, train=f"{settings.root}/train")

    def there(self, path: str) -> str:
        """A file that came along, one of the image, or a path that is the pod's already."""
        if path in self.paths:
            return self.paths[path]
        inside = PurePosixPath(path)
        if inside.is_relative_to(self.train_here):
            return f"{self.train}/{inside.relative_to(self.train_here)}"
        return path

    def paths_of(self, recipe: Recipe, settings: Mapping[str, Value]) -> dict[str, str]:
        named = [str(settings[name]) for name in recipe.paths if name in settings]
        return {path: self.there(path) for path in (recipe.script, *named)}

    def carried(self, settings: KubeSettings) -> dict[str, bytes]:
        """Path below the mounted ConfigMap -> content."""
        return {
            str(PurePosixPath(self.paths[path]).relative_to(settings.files)): content
            for path, content in self.contents.items()
        }


CONFIG = "pod.json"
# etcd takes 1.5 MiB, a ConfigMap 1 MiB in all; base64 makes 4 bytes of 3.
MOST_BYTES = 700_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeJob:
    """`config`: what a pod reads. `files`: path below the mounted ConfigMap -> content.

    `script`: the command of a rank, its script first.
    """

    run_id: str
    settings: KubeSettings
    nodes: int
    ppn: int
    min_nodes: int
    threads: int
    max_restarts: int
    script: tuple[str, ...]
    config: Mapping[str, Any]
    record: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return names.job_name(self.run_id)

    @property
    def config_map(self) -> str:
        return f"{self.name}-files"

    def metadata(self, name: str | None = None) -> Object:
        return {
            "name": name or self.name,
            **({"namespace": self.settings.namespace} if self.settings.namespace else {}),
            "labels": names.labels(self.run_id),
        }

    def metadata_to_expire(self) -> Object:
        """Of a job whose operator does not end it by its time to live: `orch clean` does."""
        return self.metadata() | {"annotations": {names.TTL: str(self.settings.ttl)}}

    def pod_command(self, mode: str) -> list[str]:
        """The program of a pod: train/node.py of the image."""
        settings = self.settings
        program = f"{settings.root}/train/node.py"
        return [settings.python, program, "pod", mode, f"{settings.files}/{CONFIG}"]

    def script_args(self) -> list[str]:
        return ["--", *map(literal, self.script)]


def trial_job(settings: KubeSettings, name: str = "orch-check") -> KubeJob:
    """Return a run of one pod without files, for objects that belong to no run."""
    return KubeJob(
        run_id=name,
        settings=settings,
        nodes=1,
        ppn=1,
        min_nodes=1,
        threads=max(1, int(settings.cpus)),
        max_restarts=0,
        script=(),
        config={},
        record={},
        files={},
    )


def literal(text: str) -> str:
    """Text as a container's argument or variable: Kubernetes expands $(NAME), and $$ to $."""
    return text.replace("$", "$$")


def config_map(job: KubeJob) -> Object:
    """What travels with the run: pod.json, its record, and the user's own files.

    Keys are numbered: a path may have letters that a key must not. Raises PlanError.
    """
    texts = {CONFIG: as_json(job.config), "run.json": json.dumps(job.record) + "\n"}
    binary: dict[str, str] = {}
    for index, content in enumerate(job.files.values()):
        try:
            texts[f"file-{index}"] = content.decode()
        except UnicodeDecodeError:
            binary[f"file-{index}"] = base64.b64encode(content).decode()
    size = sum(len(text.encode()) for text in (*texts.values(), *binary.values()))
    if size > MOST_BYTES:
        raise PlanError(
            f"The run's own files are {size / 1000:.0f} kB; {MOST_BYTES // 1000} kB can travel.",
            hint=f"Copy the data to the volume and name it there: {job.settings.mount}/data/...",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": job.metadata(job.config_map),
        "data": texts,
        **({"binaryData": binary} if binary else {}),
    }


def items(job: KubeJob) -> list[Object]:
    """Which key of the ConfigMap becomes which file."""
    own = {f"file-{index}": path for index, path in enumerate(job.files)}
    both = {CONFIG: CONFIG, "run.json": "run.json"} | own
    return [{"key": key, "path": path} for key, path in both.items()]


def as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
