"""Check how error responses of the API are described."""

from __future__ import annotations

import json

import pytest

from orchestrator.targets.kubernetes.api import errors


class ErrorResponse(Exception):
    """An error response of the API, as the client raises it."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status, self.body = status, body


@pytest.mark.parametrize(
    ("response", "message", "hint"),
    [
        ('pods is forbidden: User "me" cannot list resource "pods"', "Not allowed", "the required rights"),
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": seccompProfile',
            "The cluster refuses it: pods",
            "pod-security.kubernetes.io/enforce",
        ),
        ('pods "x" is forbidden: exceeded quota: q, requested: cpu=2', "exceeded quota", "quota"),
        (
            'persistentvolumeclaims "orch" is forbidden: only dynamically provisioned pvc can be resized',
            "only dynamically provisioned",
            "",
        ),
    ],
)
def test_only_a_missing_right_hints_at_the_required_rights(response: str, message: str, hint: str) -> None:
    error = errors.to_execute_error(ErrorResponse(403, json.dumps({"message": response})), "lab")
    assert isinstance(error, errors.Refused)
    assert message in error.message
    assert hint in error.hint
    assert ("lists the required rights" in error.hint) is (" cannot " in response)
