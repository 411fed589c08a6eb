"""What every pod of orch's gives up, as namespaces with Pod Security's profile `restricted` ask."""

from __future__ import annotations

from orchestrator.planning.manifest import Object


def of_pod(uid: int) -> Object:
    """A pod's securityContext: `uid` is its user and the group of its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def of_container() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
