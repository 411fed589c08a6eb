"""Check what `orch k8s check` finds in a cluster, and what `orch k8s init` prints."""

from __future__ import annotations

from orchestrator.targets.kubernetes import namespace


def test_claim_that_pods_cannot_share_is_found() -> None:
    claim = {"metadata": {"name": "orch"}, "status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert [namespace.claim_finding(claim, pods).severity for pods in (1, 2)] == ["ok", "miss"]
    shared = {**claim, "spec": {"accessModes": ["ReadWriteMany"]}}
    assert namespace.claim_finding(shared, 2).severity == "ok"


def test_missing_kinds_are_found() -> None:
    assert {finding.severity for finding in namespace.kinds_findings([], None)} == {"miss"}
    assert [finding.severity for finding in namespace.kinds_findings(["job"], "trainjob")] == ["absent", "miss", "ok"]
