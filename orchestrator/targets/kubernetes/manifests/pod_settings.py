"""Translate settings into fields of a pod: on which nodes it runs, and what it can read.

The settings apply to the pods of each kind of job.
"""

from __future__ import annotations

import re

from orchestrator.errors import PlanError
from orchestrator.model.secret_values import SECRET
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import names

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
EXPRESSION = re.compile(r"(?P<not>!)?\s*(?P<key>\S+?)(?:\s+(?P<how>in|notin)\s*\((?P<values>.*)\))?")
MOUNTED = {"claim": "persistentVolumeClaim", "secret": "secret", "configmap": "configMap"}
NAME_FIELDS = {"claim": "claimName", "secret": "secretName", "configmap": "name"}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names of variables whose values must not be in a manifest or on a command line.


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
    if not names.is_label_key(key) or (effect and effect not in EFFECTS):
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
    if not match or not names.is_label_key(match["key"]) or (match["not"] and match["how"]):
        raise PlanError(
            f"node_affinity: {text!r} is not a valid condition.",
            hint="Write KEY in (A, B), KEY notin (A), KEY, or !KEY.",
        )
    if not match["how"]:
        return {"key": match["key"], "operator": "DoesNotExist" if match["not"] else "Exists"}
    values = [value.strip() for value in match["values"].split(",") if value.strip()]
    operator = {"in": "In", "notin": "NotIn"}[match["how"]]
    return {"key": match["key"], "operator": operator, "values": values}


def affinity(node_affinity: tuple[str, ...], pack: str | None, labels: dict[str, str]) -> Object:
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


def volume(text: str, number: int) -> tuple[Object, Object]:
    """Parse claim|secret|configmap:NAME:/PATH[:ro] into a volume and its mount.

    Raises:
        PlanError: if it is malformed.
    """
    kind, _, suffix = text.partition(":")
    name, _, target = suffix.partition(":")
    path, colon, mode = target.partition(":")
    is_complete = kind in MOUNTED and names.is_subdomain(name) and path.startswith("/")
    if not is_complete or (colon and mode != "ro") or ".." in path.split("/"):
        raise PlanError(
            f"volumes: {text!r} is not a valid volume.",
            hint=f"Write KIND:NAME:/PATH or KIND:NAME:/PATH:ro. KIND is one of {', '.join(MOUNTED)}.",
        )
    volume_name = f"own-{number}"
    mount: Object = {"name": volume_name, "mountPath": path}
    if mode or kind != "claim":
        mount["readOnly"] = True
    return {"name": volume_name, MOUNTED[kind]: {NAME_FIELDS[kind]: name}}, mount


def variable(name: str, value: str) -> Object:
    """Return an environment variable of a container.

    Raises:
        PlanError: if its name is invalid, or is that of a secret.
    """
    check_variable(name)
    if SECRET.search(name):
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
    check_variable(name)
    secret, slash, key = text.partition("/")
    if not slash or not names.is_subdomain(secret) or not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        raise PlanError(
            f"secret_env: {name}={text}: expected SECRET/KEY.",
            hint=f"Example: --k8s secret_env.{name}=hub/token reads the key `token` of the Secret `hub`.",
        )
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def check_variable(name: str) -> None:
    if not VARIABLE.fullmatch(name):
        raise PlanError(
            f"env: {name!r} is not a valid variable name.",
            hint="Use letters, digits and `_`, and do not begin with a digit.",
        )
