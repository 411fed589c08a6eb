"""The objects of a run on Kubernetes: ConfigMaps with its files, its pods, and the kinds of jobs that run them.

Their templates are the YAML files in orchestrator/templates/kubernetes. `$NAME` stands for a value. It is filled in
after the YAML has been parsed, so that no text can change the structure. A field with an empty value is left out. In a
list, `$*NAME` stands for any number of entries.
"""

from __future__ import annotations

import base64
import json
import pkgutil
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml
from orch_node.protocol.environment import find_reserved

from orchestrator.errors import PlanError
from orchestrator.model.printable import SECRET_VARIABLE
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.settings import KubernetesSettings

EMPTY: tuple[Any, ...] = (None, "", (), [], {})


@cache
def documents(name: str) -> tuple[Object, ...]:
    """Return the documents of a template."""
    return tuple(yaml.safe_load_all(pkgutil.get_data("orchestrator", f"templates/kubernetes/{name}.yaml") or b""))


def render(name: str, values: Mapping[str, Any]) -> tuple[Object, ...]:
    """Return the objects of a template with these values."""
    return tuple(fill(document, values) for document in documents(name))


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with these values."""
    if isinstance(template, dict):
        filled = {key: fill(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value not in EMPTY or template[key] == value}
    if isinstance(template, list):
        return [item for entry in template for item in entries(entry, values)]
    return values[template[1:]] if isinstance(template, str) and template.startswith("$") else template


def entries(template: Any, values: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a list that an entry of a template stands for."""
    if isinstance(template, str) and template.startswith("$*"):
        return list(values[template[2:]])
    return [fill(template, values)]


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
        raise PlanError.about("files-for-pods", size=size / 1000, limit=MAX_BYTES // 1000, mount=job.settings.mount)
    objects = [*render("files", {"metadata": job.metadata("-files"), "texts": texts, "binary": binary})]
    for index, part in enumerate(job.project):
        metadata = job.metadata(f"-{PROJECT}-{index}", **{names.PART: PROJECT})
        encoded = base64.b64encode(part).decode()
        objects += render("files", {"metadata": metadata, "texts": {}, "binary": {PART: encoded}})
    return tuple(objects)


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
MOUNTED = {"claim": "persistentVolumeClaim", "secret": "secret", "configmap": "configMap"}
# The syntax of settings, and what to write.
SYNTAX = {
    "tolerations": (
        rf"(?P<key>[^=:]+)(?:=(?P<value>[^:]*))?(?::(?P<effect>{'|'.join(EFFECTS)}))?",
        f"KEY=VALUE:EFFECT or KEY:EFFECT. The effects are {', '.join(EFFECTS)}.",
    ),
    "node_affinity": (
        r"!\s*(?P<absent>\S+)|(?P<key>[^\s!]\S*?)(?:\s+(?P<how>in|notin)\s*\((?P<values>.*)\))?",
        "KEY in (A, B), KEY notin (A), KEY, or !KEY.",
    ),
    "volumes": (
        rf"({'|'.join(MOUNTED)}):([^:]+):(/[^:]*)(:ro)?",
        f"KIND:NAME:/PATH or KIND:NAME:/PATH:ro. KIND is one of {', '.join(MOUNTED)}.",
    ),
    "secret_env": (r"([^/]+)/(.+)", "NAME=SECRET/KEY: hub/token reads the key `token` of the Secret `hub`."),
}
NAME_FIELDS = {"claim": "claimName", "secret": "secretName", "configmap": "name"}


def parse(setting: str, text: str) -> re.Match[str]:
    """Return the parts of a setting's value; raise PlanError if it is malformed."""
    pattern, syntax = SYNTAX[setting]
    if match := re.fullmatch(pattern, text.strip()):
        return match
    raise PlanError(f"{setting}: {text!r} is not valid.", hint=f"Write {syntax}")


def toleration(text: str) -> Object:
    """Parse KEY=VALUE:EFFECT, KEY:EFFECT or KEY, the syntax of `kubectl taint`."""
    parts = {name: value for name, value in parse("tolerations", text).groupdict().items() if value is not None}
    return {**parts, "operator": "Equal" if "value" in parts else "Exists"}


def expression(text: str) -> Object:
    """Parse KEY in (A, B), KEY notin (A), KEY or !KEY, the syntax of label selectors."""
    match = parse("node_affinity", text)
    if not match["how"]:
        return {"key": match["absent"] or match["key"], "operator": "DoesNotExist" if match["absent"] else "Exists"}
    values = [value.strip() for value in match["values"].split(",") if value.strip()]
    return {"key": match["key"], "operator": {"in": "In", "notin": "NotIn"}[match["how"]], "values": values}


def user_volume(text: str, number: int) -> tuple[Object, Object]:
    """Parse claim|secret|configmap:NAME:/PATH[:ro] into a volume and its mount."""
    kind, name, path, mode = parse("volumes", text).groups()
    volume_name, read_only = f"own-{number}", {"readOnly": True} if mode or kind != "claim" else {}
    volume = {"name": volume_name, MOUNTED[kind]: {NAME_FIELDS[kind]: name}}
    return volume, {"name": volume_name, "mountPath": path, **read_only}


def user_variable(name: str, value: str) -> Object:
    """Return an environment variable of a container.

    Raises:
        PlanError: if its name is invalid, or is that of a secret.
    """
    if SECRET_VARIABLE.search(name):
        raise PlanError.about("secret-variable-of-pods", name=name)
    return {"name": name, "value": literal(value)}


def secret_variable(name: str, text: str) -> Object:
    """Return an environment variable that is read from SECRET/KEY."""
    secret, key = parse("secret_env", text).groups()
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
    return {**dict(settings), **values}


def pod_template(job: KubernetesJob, values: Mapping[str, Any]) -> Object:
    """Return the pods of a kind of job.

    Raises:
        PlanError: if a setting would override a variable of orch.
    """
    (pod,) = render("pod", {"ports": None, "restart": None, "subdomain": None, "rendezvous": (), **values})
    variables = Counter(variable["name"] for variable in pod["spec"]["containers"][0]["env"])
    user_names = sorted({*job.settings.env, *job.settings.secret_env})
    if conflicts := [name for name in user_names if variables[name] > 1 or find_reserved([name])]:
        raise PlanError.about("variable-of-orch", names=", ".join(conflicts))
    return pod


TRAINER_API = "trainer.kubeflow.org/v1alpha1"
RENDEZVOUS_PORT = 29400


def job_objects(launcher: str, job: KubernetesJob) -> tuple[Object, ...]:
    """Return the objects of a kind of job, the job itself last.

    The first document of a template has what distinguishes the pods of the kind.

    Raises:
        PlanError: if a setting of the pods is invalid.
    """
    settings, restarts = job.settings, job.max_restarts
    values = {
        **pod_values(job),
        "name": job.name,
        "run_id": job.run_id,
        "metadata": job.metadata(),
        # Kueue suspends a job with its label until there is quota.
        "job_labels": names.labels(job.run_id) | ({} if settings.queue is None else {names.QUEUE: settings.queue}),
        "pods": job.nodes,
        "min_pods": job.min_nodes,
        "pod_range": f"{job.nodes}:{job.nodes}",
        "ppn": job.ppn,
        "ppn_text": str(job.ppn),
        "restarts": restarts,
        "restarts_text": str(restarts),
        "restarts_or_none": restarts or None,
        "pod_restarts": restarts * job.nodes,
        "lost_pods": "OnFailure" if restarts else "Never",  # with restarts allowed, a lost pod joins again
        "ttl_text": str(settings.ttl),
        "first_pod": f"{job.name}-0.{job.name}:{RENDEZVOUS_PORT}",
    }
    kind, *objects = documents(launcher)
    pod = pod_template(job, {**values, **fill(kind, values)})
    return tuple(fill(item, {**values, "pod": pod}) for item in objects)


def shared_runtime(settings: KubernetesSettings, name: str = "orch-torch") -> Object:
    """Return a runtime for the user's own TrainJobs: the image, the volume and the size of a pod.

    Each run of orch has a separate runtime, with its files.
    """
    runtime, _ = job_objects("trainjob", trial_job(settings, name))
    runtime["metadata"] = names.metadata(name, settings.namespace)
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    pod["metadata"] = {"labels": names.labels()}
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if "configMap" not in volume]
    (container,) = pod["spec"]["containers"]
    del container["command"], container["args"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "orch-files"]
    return runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job that runs ranks."""

    kind: str
    api: str  # its group and version
    comes_with: str  # what installs it


# The preferred first: Kubeflow develops the trainer, and discontinues its v1 operator, which has PyTorchJob. A cluster
# with neither still has plain Jobs.
KINDS = {
    "trainjob": Kind(kind="TrainJob", api=TRAINER_API, comes_with="Kubeflow Trainer v2"),
    "pytorchjob": Kind(kind="PyTorchJob", api="kubeflow.org/v1", comes_with="Kubeflow's training operator 1.9"),
    "job": Kind(kind="Job", api="batch/v1", comes_with="Kubernetes itself"),
}
ELASTIC = "pytorchjob"


def default_kind(installed: tuple[str, ...] | str, *, elastic: bool = False) -> tuple[str, str]:
    """Return the launcher for a run without --launcher, and the reason for it.

    Args:
        installed: the launchers whose kinds the cluster has, or why it could not be queried.
        elastic: whether the run may continue with fewer pods.

    Raises:
        PlanError: if the cluster has no kind that can run it.
    """
    candidates = (ELASTIC,) if elastic else tuple(KINDS)
    if isinstance(installed, str):
        return candidates[0], f"assumed: {installed}"
    launcher = next((name for name in candidates if name in installed), None)
    if launcher is None:
        kinds = " nor ".join(KINDS[name].kind for name in candidates)
        first = KINDS[candidates[0]]
        raise PlanError(f"The cluster has no {kinds}.", hint=f"Install {first.comes_with} for {first.kind}.")
    if elastic:
        return launcher, "the only kind that continues with fewer pods"
    missing = " and no ".join(KINDS[name].kind for name in candidates[: candidates.index(launcher)])
    return launcher, f"the cluster has no {missing}" if missing else "the cluster has it"
