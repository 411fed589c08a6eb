"""Pod Security Admission's profile `restricted`, in the words of the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def refusal_message(name: str, spec: Json) -> str:
    """The message of the refusal; empty for a pod that is admitted."""
    found = "), ".join(violations(spec))
    if not found:
        return ""
    return f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {found})'


def violations(spec: Json) -> Iterator[str]:
    """What is wrong with a pod's spec, each without its last bracket."""
    pod = spec.get("securityContext") or {}
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        own, name = container.get("securityContext") or {}, f'container "{container["name"]}"'
        capabilities = own.get("capabilities") or {}
        if own.get("allowPrivilegeEscalation") is not False:
            field = "securityContext.allowPrivilegeEscalation=false"
            yield f"allowPrivilegeEscalation != false ({name} must set {field}"
        added = set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}
        if "ALL" not in (capabilities.get("drop") or ()) or added:
            field = 'securityContext.capabilities.drop=["ALL"]'
            yield f"unrestricted capabilities ({name} must set {field}"
        if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield f"runAsNonRoot != true (pod or {name} must set securityContext.runAsNonRoot=true"
        profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            field = 'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
            yield f"seccompProfile (pod or {name} must set {field}"
    for volume in spec.get("volumes", ()):
        if not ALLOWED_VOLUMES & volume.keys():
            yield f'restricted volume types (volume "{volume["name"]}" uses restricted volume type'
