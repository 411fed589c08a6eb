"""Build the pods of a run, which satisfy the profile `restricted` of Pod Security, from the settings."""

from __future__ import annotations

import re

from orch_node.protocol.environment import find_reserved

from orchestrator.errors import PlanError
from orchestrator.model.printable import SECRET_VARIABLE
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.job import KubernetesJob, files_volume, literal
from orchestrator.targets.kubernetes.settings import SECRETS, TOKEN, KubernetesSettings

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


def pod_affinity(node_affinity: tuple[str, ...], pack: str | None, labels: dict[str, str]) -> Object:
    """Return the affinity of pods to nodes and to each other.

    Args:
        node_affinity: conditions that nodes must fulfil.
        pack: the label of nodes that all pods must share.
        labels: of the pods.
    """
    result: Object = {}
    if node_affinity:
        terms = [{"matchExpressions": [expression(text) for text in node_affinity]}]
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        result["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
    if pack:
        term = {"topologyKey": pack, "labelSelector": {"matchLabels": dict(labels)}}
        result["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return result


def spread(key: str, labels: dict[str, str]) -> list[Object]:
    """Require that the numbers of pods per value of a node label differ by at most one."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


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
    return {"name": name, "value": value.replace("$", "$$")}


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


def pod_security(uid: int) -> Object:
    """Return the securityContext of a pod with this user and this group of its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


# No pod of orch uses the API.
NO_TOKEN = {"automountServiceAccountToken": False}


def container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


GRACE_SECONDS = 120  # for the checkpoint of a preempted run


def pod_template(job: KubernetesJob, container: Object) -> Object:
    """Return the template of a pod with one container."""
    settings = job.settings
    return {
        "metadata": {"labels": names.labels(job.run_id)},
        "spec": {
            "containers": [container],
            "volumes": volumes(job),
            "securityContext": {**pod_security(settings.uid), "fsGroupChangePolicy": "OnRootMismatch"},
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "enableServiceLinks": False,
            **NO_TOKEN,
            **without_empty(
                {
                    "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
                    "serviceAccountName": settings.service_account,
                    "priorityClassName": settings.priority_class,
                }
            ),
            **node_fields(settings, names.labels(job.run_id)),
        },
    }


def node_fields(settings: KubernetesSettings, labels: dict[str, str]) -> Object:
    """Return the fields that select nodes.

    Args:
        settings: of the pods.
        labels: of the pods that share a node label, or differ in it.
    """
    return without_empty(
        {
            "nodeSelector": dict(settings.node_selector),
            "affinity": pod_affinity(settings.node_affinity, settings.pack, labels),
            "tolerations": [toleration(text) for text in settings.tolerations],
            "topologySpreadConstraints": spread(settings.spread, labels) if settings.spread else None,
            "runtimeClassName": settings.runtime_class,
        }
    )


def without_empty(fields: Object) -> Object:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def container(job: KubernetesJob, *, name: str) -> Object:
    """Return a container that runs ranks."""
    settings = job.settings
    return {
        "name": name,
        "image": settings.image,
        "command": job.pod_command(),
        "args": ["--", *map(literal, job.script)],
        "env": variables(job),
        "resources": resources(settings),
        "volumeMounts": mounts(job),
        "securityContext": container_security(),
    }


def variables(job: KubernetesJob) -> list[Object]:
    """Return the environment variables of a container.

    Raises:
        PlanError: if a setting would override a variable of orch.
    """
    defaults, settings = environment(job), job.settings
    user_names = sorted({*settings.env, *settings.secret_env})
    if conflicts := [name for name in user_names if name in defaults or find_reserved([name])]:
        raise PlanError(
            f"env: {', '.join(conflicts)}: set by orch itself.",
            hint="Remove it, and use the options of `orch train` instead.",
        )
    return [
        *({"name": key, "value": literal(value)} for key, value in defaults.items()),
        *(user_variable(name, value) for name, value in settings.env.items()),
        *(secret_variable(name, text) for name, text in settings.secret_env.items()),
    ]


def environment(job: KubernetesJob) -> dict[str, str]:
    """Return the environment of all processes of a pod; orch_node.pod adds LD_PRELOAD."""
    mount = job.settings.mount
    return {
        "OMP_NUM_THREADS": str(job.threads),
        "CCL_WORKER_COUNT": "1",
        "HF_HOME": f"{mount}/cache/huggingface",
        "TRANSFORMERS_CACHE": f"{mount}/cache/huggingface/hub",
        "HF_TOKEN_PATH": f"{SECRETS}/{TOKEN}",
        "LOGLEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
    }


def resources(settings: KubernetesSettings) -> Object:
    """Return equal requests and limits.

    The pod is Guaranteed: it is evicted last, and gets exclusive cores if the kubelet's CPU manager
    is static.
    """
    gpus = {settings.gpu_resource: str(settings.gpu)} if settings.gpu else {}
    same = {"cpu": settings.cpu, "memory": settings.memory, **gpus}
    return {"requests": dict(same), "limits": same}


def volumes(job: KubernetesJob) -> list[Object]:
    settings = job.settings
    token = {"key": TOKEN, "path": TOKEN}
    return [
        {"name": "orch-data", "persistentVolumeClaim": {"claimName": settings.claim}},
        {"name": "orch-files", **files_volume(job)},
        {"name": "orch-shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm}},
        {
            "name": "orch-secrets",
            # mode 0440: fsGroup makes the group the pod's own
            "secret": {"secretName": settings.token_secret, "optional": True, "defaultMode": 0o440, "items": [token]},
        },
        *(user_volume(text, number)[0] for number, text in enumerate(settings.volumes)),
    ]


def mounts(job: KubernetesJob) -> list[Object]:
    settings = job.settings
    return [
        {"name": "orch-data", "mountPath": settings.mount},
        {"name": "orch-files", "mountPath": settings.files, "readOnly": True},
        {"name": "orch-shm", "mountPath": "/dev/shm"},
        {"name": "orch-secrets", "mountPath": SECRETS, "readOnly": True},
        *(user_volume(text, number)[1] for number, text in enumerate(settings.volumes)),
    ]
