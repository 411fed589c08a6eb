"""Check pods against the Pod Security profile `restricted`, with the messages of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
ALLOWED_VOLUMES = """
    configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret
"""


def refusal_message(name: str, spec: Json) -> str:
    """Return the message with which Kubernetes refuses a pod; empty if it admits the pod."""
    reasons = "), ".join(violations(spec))
    if not reasons:
        return ""
    return f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {reasons})'


def violations(spec: Json) -> Iterator[str]:
    """Yield the reason for each violation by a pod's spec, without its closing bracket."""
    pod = spec.get("securityContext") or {}
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        context, name = container.get("securityContext") or {}, f'container "{container["name"]}"'
        capabilities = context.get("capabilities") or {}
        if context.get("allowPrivilegeEscalation") is not False:
            field = "securityContext.allowPrivilegeEscalation=false"
            yield f"allowPrivilegeEscalation != false ({name} must set {field}"
        added = set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}
        if "ALL" not in (capabilities.get("drop") or ()) or added:
            field = 'securityContext.capabilities.drop=["ALL"]'
            yield f"unrestricted capabilities ({name} must set {field}"
        if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield f"runAsNonRoot != true (pod or {name} must set securityContext.runAsNonRoot=true"
        profile = context.get("seccompProfile") or pod.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            field = 'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
            yield f"seccompProfile (pod or {name} must set {field}"
    for volume in spec.get("volumes", ()):
        if not {*ALLOWED_VOLUMES.split()} & volume.keys():
            yield f'restricted volume types (volume "{volume["name"]}" uses restricted volume type'
