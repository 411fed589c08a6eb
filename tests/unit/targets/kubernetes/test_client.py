"""Check how error responses of the API are described."""

from __future__ import annotations

import json

from orchestrator.targets.kubernetes import client


class ErrorResponse(Exception):
    """An error response of the API, as the client raises it."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status, self.body = status, body


def test_only_a_missing_right_hints_at_the_role() -> None:
    for response, message in (
        ('pods is forbidden: User "me" cannot list resource "pods"', "Not allowed: pods"),  # right
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": x', "The cluster refuses it: pods"),
        ('pods "x" is forbidden: exceeded quota: q, requested: cpu=2', "exceeded quota: q, requested: cpu=2"),
    ):
        error = client.to_execute_error(ErrorResponse(403, json.dumps({"message": response})), "lab")
        assert isinstance(error, client.Refused)
        assert message in error.message
        assert ("orch k8s role" in error.hint) is (" cannot " in response)
