"""What a namespace needs once: the volume, and the token. Pure."""

from __future__ import annotations

import base64

from orchestrator.planning.manifest import Object
from orchestrator.targets.kubernetes.manifests import names
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


def token(settings: KubeSettings, value: str) -> Object:
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
