"""Settings in short words -> what a pod's spec has for them: where it runs, what it sees. Pure.

`queue` apart, all of them are about pods, and so the same for each kind of job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from orchestrator.errors import PlanError
from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
EXPRESSION = re.compile(r"(?P<not>!)?\s*(?P<key>\S+?)(?:\s+(?P<how>in|notin)\s*\((?P<values>.*)\))?")
MOUNTED = {"claim": "persistentVolumeClaim", "secret": "secret", "configmap": "configMap"}
NAMED_BY = {"claim": "claimName", "secret": "secretName", "configmap": "name"}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a plain value in a manifest, and in the arguments of `orch`, is not for.
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.I)


def toleration(text: str) -> Object:
    """KEY=VALUE:EFFECT, KEY:EFFECT or KEY, as `kubectl taint` writes taints. Raises PlanError."""
    key, equals, rest = text.partition("=")
    value, colon, effect = (rest if equals else key).rpartition(":")
    if not colon:
        value, effect = effect, ""
    key = key if equals else value
    if not names.is_label_key(key) or (effect and effect not in EFFECTS):
        raise PlanError(
            f"tolerations: {text!r} is no taint.",
            hint=f"KEY=VALUE:EFFECT or KEY:EFFECT; the effects are {', '.join(EFFECTS)}.",
        )
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return found | ({"effect": effect} if effect else {})


def expression(text: str) -> Object:
    """KEY in (A, B), KEY notin (A), KEY or !KEY, as label selectors write it. Raises PlanError."""
    match = EXPRESSION.fullmatch(text.strip())
    if not match or not names.is_label_key(match["key"]) or (match["not"] and match["how"]):
        raise PlanError(f"node_affinity: {text!r} is no condition.", hint="KEY in (A, B), KEY notin (A), KEY, or !KEY.")
    if not match["how"]:
        return {"key": match["key"], "operator": "DoesNotExist" if match["not"] else "Exists"}
    values = [one.strip() for one in match["values"].split(",") if one.strip()]
    operator = {"in": "In", "notin": "NotIn"}[match["how"]]
    return {"key": match["key"], "operator": operator, "values": values}


def tolerates(tolerations: Iterable[Object], taint: Mapping[str, str]) -> bool:
    """Whether one of them is for this taint of a node, as the scheduler compares them."""
    return any(
        one["key"] == taint["key"]
        and one.get("effect", taint["effect"]) == taint["effect"]
        and one.get("value", taint.get("value", "")) == taint.get("value", "")
        for one in tolerations
    )


def holds(condition: Object, labels: Mapping[str, str]) -> bool:
    """Whether an expression is true of a node with these labels. A label that is not there is not
    in any list."""
    key, operator = condition["key"], condition["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    return (labels.get(key) in condition["values"]) is (operator == "In")


def affinity(node_affinity: tuple[str, ...], pack: str | None, labels: dict[str, str]) -> Object:
    """`pack`: the label of nodes that all pods of the run shall have alike."""
    found: Object = {}
    if node_affinity:
        terms = [{"matchExpressions": [expression(one) for one in node_affinity]}]
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        found["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
    if pack:
        term = {"topologyKey": pack, "labelSelector": {"matchLabels": dict(labels)}}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return found


def spread(key: str, labels: dict[str, str]) -> list[Object]:
    """As many pods at each value of this label of nodes, but for one."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def volume(text: str, number: int) -> tuple[Object, Object]:
    """claim|secret|configmap:NAME:/PATH[:ro] -> (volume, its mount). Raises PlanError."""
    kind, _, rest = text.partition(":")
    name, _, where = rest.partition(":")
    path, colon, mode = where.partition(":")
    whole = kind in MOUNTED and names.is_subdomain(name) and path.startswith("/")
    if not whole or (colon and mode != "ro") or ".." in path.split("/"):
        raise PlanError(
            f"volumes: {text!r} is no volume.",
            hint=f"KIND:NAME:/PATH or KIND:NAME:/PATH:ro; KIND is {', '.join(MOUNTED)}.",
        )
    own = f"own-{number}"
    mount: Object = {"name": own, "mountPath": path}
    if mode or kind != "claim":
        mount["readOnly"] = True
    return {"name": own, MOUNTED[kind]: {NAMED_BY[kind]: name}}, mount


def variable(name: str, value: str) -> Object:
    """Raises PlanError for what is none, and for a secret in the open."""
    check_variable(name)
    if SECRET.search(name):
        raise PlanError(
            f"env: {name} would show a secret to whoever reads the manifest or this command.",
            hint=f"secret_env.{name}=SECRET/KEY takes it from a Secret of the namespace.",
        )
    return {"name": name, "value": value.replace("$", "$$")}


def secret_variable(name: str, text: str) -> Object:
    """SECRET/KEY: the value stays in the Secret. Raises PlanError."""
    check_variable(name)
    secret, slash, key = text.partition("/")
    if not slash or not names.is_subdomain(secret) or not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        raise PlanError(
            f"secret_env: {name}={text}: expected SECRET/KEY.",
            hint=f"--k8s secret_env.{name}=hub/token: the key `token` of the Secret `hub`.",
        )
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def check_variable(name: str) -> None:
    if not VARIABLE.fullmatch(name):
        raise PlanError(
            f"env: {name!r} is no name of a variable.", hint="It has letters, digits and `_`, and begins with no digit."
        )
