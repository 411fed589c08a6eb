"""The objects that a namespace needs once: the volume, and the token (`orch k8s init`)."""

from __future__ import annotations

import base64

from orchestrator.planning.manifest import Object, as_yaml
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.trainjob import shared_runtime
from orchestrator.targets.kubernetes.settings import TOKEN, KubernetesSettings


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
