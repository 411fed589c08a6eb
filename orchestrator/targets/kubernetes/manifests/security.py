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


# No pod of orch asks the API for anything, and neither do the operators' launchers, which use ssh.
NO_TOKEN = {"automountServiceAccountToken": False}


def of_container() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
