"""Check what `orch k8s check` finds in a cluster, and what `orch k8s init` prints."""

from __future__ import annotations

from orchestrator.targets.kubernetes import namespace


def test_claim_that_pods_cannot_share_is_found() -> None:
    claim = {"metadata": {"name": "orch"}, "status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert [namespace.claim_finding(claim, pods).severity for pods in (1, 2)] == ["ok", "miss"]
    shared = {**claim, "spec": {"accessModes": ["ReadWriteMany"]}}
    assert namespace.claim_finding(shared, 2).severity == "ok"
