"""What a namespace needs once: the volume, and the token. Pure."""

from __future__ import annotations

import base64

from orchestrator.planning.manifest import Object, as_yaml
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.trainjob import shared_runtime
from orchestrator.targets.kubernetes.settings import TOKEN, KubeSettings


def volume(settings: KubeSettings) -> Object:
    """All pods of a run write to it, wherever they are."""
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


def token_secret(settings: KubeSettings, value: str) -> Object:
    """The only place where the token is: pods mount it, no manifest of a run has it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata_of_namespace(settings.token_secret, settings.namespace),
        "type": "Opaque",
        "data": {TOKEN: base64.b64encode(value.encode()).decode()},
    }


def without_secrets(made: Object) -> Object:
    """The object as it may be shown."""
    if made["kind"] != "Secret":
        return made
    return {**made, "data": dict.fromkeys(made["data"], "<not shown>")}


def init_objects(settings: KubeSettings, token: str | None, *, runtime: bool) -> tuple[Object, ...]:
    """What a namespace needs once."""
    return (
        volume(settings),
        *([token_secret(settings, token)] if token else []),
        *([shared_runtime(settings)] if runtime else []),
    )


def as_printable_yaml(objects: tuple[Object, ...]) -> str:
    """As YAML, secrets left out."""
    return as_yaml(tuple(without_secrets(one) for one in objects))


def apply(cluster: Kube, objects: tuple[Object, ...]) -> list[str]:
    """Make them, or bring them to this; -> what they are called."""
    for one in objects:
        cluster.apply(one)
    return [f"{one['kind']} {one['metadata']['name']}" for one in objects]
