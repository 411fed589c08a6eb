"""The objects that a namespace needs once: the volume, the token and the Role (`orch k8s init` and `role`)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from orchestrator.planning.plan import Object, as_yaml
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.manifests.trainjob import shared_runtime
from orchestrator.targets.kubernetes.settings import TOKEN, KubernetesSettings

# Resources of the core API -> what orch does with them. Server-side apply creates objects with `patch`.
CORE_RIGHTS = {
    "configmaps": ("create", "patch", "list", "delete"),
    "events": ("list",),
    "persistentvolumeclaims": ("create", "patch", "get"),  # `orch k8s init --apply` and `check`
    "pods": ("create", "patch", "get", "list", "watch", "delete"),
    "pods/exec": ("create", "get"),
    "pods/log": ("get",),
    "secrets": ("create", "patch"),  # `orch k8s init --apply`
}
JOB_VERBS = ("create", "patch", "get", "list", "delete")
OWNED_VERBS = ("create", "patch", "list", "delete")  # for what comes with a job


def role(settings: KubernetesSettings, launchers: Iterable[str] = KINDS) -> Object:
    """Return the Role with all rights that orch needs for these launchers, and for `orch k8s init`."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": names.metadata_of_namespace("orch", settings.namespace),
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
            for group, resource, verbs in rights(launchers)
        ],
    }


def rights(launchers: Iterable[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the API group, the resource and the verbs of each rule."""
    for resource, verbs in CORE_RIGHTS.items():
        yield "", resource, verbs
    for launcher in launchers:
        kind = KINDS[launcher]
        yield kind.group, kind.plural, JOB_VERBS
        if launcher == "job":
            yield "", "services", OWNED_VERBS
        if launcher == "trainjob":
            yield kind.group, "trainingruntimes", OWNED_VERBS


def volume(settings: KubernetesSettings) -> Object:
    """Return the claim of a volume that pods on all nodes can write to."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": names.metadata_of_namespace(settings.claim, settings.namespace),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": settings.storage}},
            **({"storageClassName": settings.storage_class} if settings.storage_class else {}),
        },
    }


def token_secret(settings: KubernetesSettings, value: str) -> Object:
    """Return the Secret with the token, which pods mount; manifests of runs do not contain it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata_of_namespace(settings.token_secret, settings.namespace),
        "type": "Opaque",
        "data": {TOKEN: base64.b64encode(value.encode()).decode()},
    }


def without_secrets(item: Object) -> Object:
    """Return an object without secret values."""
    if item["kind"] != "Secret":
        return item
    return {**item, "data": dict.fromkeys(item["data"], "<not shown>")}


def init_objects(settings: KubernetesSettings, token: str | None, *, runtime: bool) -> tuple[Object, ...]:
    """Return the objects that a namespace needs once."""
    return (
        volume(settings),
        *([token_secret(settings, token)] if token else []),
        *([shared_runtime(settings)] if runtime else []),
    )


def as_printable_yaml(objects: tuple[Object, ...]) -> str:
    """Return objects as YAML, without secret values."""
    return as_yaml(tuple(map(without_secrets, objects)))


def apply(cluster: KubernetesClient, objects: tuple[Object, ...]) -> list[str]:
    """Create or update objects, and return their kinds and names."""
    for item in objects:
        cluster.apply(item)
    return [f"{item['kind']} {item['metadata']['name']}" for item in objects]
