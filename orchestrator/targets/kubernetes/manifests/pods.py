"""Describe a run for the launchers of Kubernetes: its files with their ConfigMaps, and its pods. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orch_node.protocol.environment import find_reserved

from orchestrator.errors import PlanError
from orchestrator.model.printable import SECRET_VARIABLE
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


EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
EXPRESSION = re.compile(r"(?P<not>!)?\s*(?P<key>\S+?)(?:\s+(?P<how>in|notin)\s*\((?P<values>.*)\))?")
MOUNTED = {"claim": "persistentVolumeClaim", "secret": "secret", "configmap": "configMap"}
NAME_FIELDS = {"claim": "claimName", "secret": "secretName", "configmap": "name"}


def toleration(text: str) -> Object:
    """Parse KEY=VALUE:EFFECT, KEY:EFFECT or KEY, the syntax of `kubectl taint`.

    Raises:
        PlanError: if it is malformed.
    """
    key, equals, suffix = text.partition("=")
    value, colon, effect = (suffix if equals else key).rpartition(":")
    if not colon:
        value, effect = effect, ""
    key = key if equals else value
    if not key or (effect and effect not in EFFECTS):
        raise PlanError(
            f"tolerations: {text!r} is not a valid taint.",
            hint=f"Write KEY=VALUE:EFFECT or KEY:EFFECT. The effects are {', '.join(EFFECTS)}.",
        )
    result = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return result | ({"effect": effect} if effect else {})


def expression(text: str) -> Object:
    """Parse KEY in (A, B), KEY notin (A), KEY or !KEY, the syntax of label selectors.

    Raises:
        PlanError: if it is malformed.
    """
    match = EXPRESSION.fullmatch(text.strip())
    if not match or (match["not"] and match["how"]):
        raise PlanError(
            f"node_affinity: {text!r} is not a valid condition.",
            hint="Write KEY in (A, B), KEY notin (A), KEY, or !KEY.",
        )
    if not match["how"]:
        return {"key": match["key"], "operator": "DoesNotExist" if match["not"] else "Exists"}
    values = [value.strip() for value in match["values"].split(",") if value.strip()]
    operator = {"in": "In", "notin": "NotIn"}[match["how"]]
    return {"key": match["key"], "operator": operator, "values": values}


def user_volume(text: str, number: int) -> tuple[Object, Object]:
    """Parse claim|secret|configmap:NAME:/PATH[:ro] into a volume and its mount.

    Raises:
        PlanError: if it is malformed.
    """
    kind, _, suffix = text.partition(":")
    name, _, target = suffix.partition(":")
    path, colon, mode = target.partition(":")
    if kind not in MOUNTED or not name or not path.startswith("/") or (colon and mode != "ro"):
        raise PlanError(
            f"volumes: {text!r} is not a valid volume.",
            hint=f"Write KIND:NAME:/PATH or KIND:NAME:/PATH:ro. KIND is one of {', '.join(MOUNTED)}.",
        )
    volume_name = f"own-{number}"
    mount: Object = {"name": volume_name, "mountPath": path}
    if mode or kind != "claim":
        mount["readOnly"] = True
    return {"name": volume_name, MOUNTED[kind]: {NAME_FIELDS[kind]: name}}, mount


def user_variable(name: str, value: str) -> Object:
    """Return an environment variable of a container.

    Raises:
        PlanError: if its name is invalid, or is that of a secret.
    """
    if SECRET_VARIABLE.search(name):
        raise PlanError(
            f"env: {name} would show a secret to everybody who can read the manifest or this command.",
            hint=f"Use secret_env.{name}=SECRET/KEY, which reads it from a Secret of the namespace.",
        )
    return {"name": name, "value": literal(value)}


def secret_variable(name: str, text: str) -> Object:
    """Return an environment variable that is read from SECRET/KEY.

    Raises:
        PlanError: if the name or the reference is malformed.
    """
    secret, slash, key = text.partition("/")
    if not (secret and slash and key):
        raise PlanError(
            f"secret_env: {name}={text}: expected SECRET/KEY.",
            hint=f"Example: --k8s secret_env.{name}=hub/token reads the key `token` of the Secret `hub`.",
        )
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def literal(text: str) -> str:
    """Escape an argument or a variable of a container, in which Kubernetes expands $(NAME)."""
    return text.replace("$", "$$")


def pod_values(job: KubernetesJob) -> dict[str, Any]:
    """Return the values of the template of the pods, without those that differ between the kinds of jobs.

    Raises:
        PlanError: if a setting is malformed, or would override a variable of orch.
    """
    settings, labels = job.settings, names.labels(job.run_id)
    sources, peers = file_sources(job), {"labelSelector": {"matchLabels": labels}}
    volumes = [user_volume(text, number) for number, text in enumerate(settings.volumes)]
    gpus = {settings.gpu_resource: str(settings.gpu)} if settings.gpu else {}
    terms = [expression(text) for text in settings.node_affinity]
    values = {
        "labels": labels,
        "program": f"{settings.root}/train/node.py",
        "config_path": f"{settings.files}/{CONFIG}",
        "args": ["--", *map(literal, job.script)],
        "threads": str(job.threads),
        "hub_cache": f"{literal(settings.mount)}/cache/huggingface",
        "models_cache": f"{literal(settings.mount)}/cache/huggingface/hub",
        "user_variables": [
            *(user_variable(name, value) for name, value in settings.env.items()),
            *(secret_variable(name, text) for name, text in settings.secret_env.items()),
        ],
        "size": {"cpu": settings.cpu, "memory": settings.memory, **gpus},
        "user_volumes": [volume for volume, _ in volumes],
        "user_mounts": [mount for _, mount in volumes],
        "config_map": None if job.project else sources[0],
        "projected": {"sources": [{"configMap": source} for source in sources]} if job.project else None,
        "pull_secrets": [{"name": name} for name in settings.pull_secrets],
        "node_terms": [{"matchExpressions": terms}] if terms else None,
        "pack": [{"topologyKey": settings.pack, **peers}] if settings.pack else None,
        "tolerations": [toleration(text) for text in settings.tolerations],
        "spread": [{"maxSkew": 1, "topologyKey": settings.spread, "whenUnsatisfiable": "DoNotSchedule", **peers}]
        if settings.spread
        else None,
    }
    return {**asdict(settings), **values}


def pod_template(job: KubernetesJob, values: Mapping[str, Any]) -> Object:
    """Return the pods of a kind of job.

    Raises:
        PlanError: if a setting would override a variable of orch.
    """
    (pod,) = render("pod", {"ports": None, "restart": None, "subdomain": None, "rendezvous": (), **values})
    variables = Counter(variable["name"] for variable in pod["spec"]["containers"][0]["env"])
    user_names = sorted({*job.settings.env, *job.settings.secret_env})
    if conflicts := [name for name in user_names if variables[name] > 1 or find_reserved([name])]:
        raise PlanError(
            f"env: {', '.join(conflicts)}: set by orch itself.",
            hint="Remove it, and use the options of `orch train` instead.",
        )
    return pod
