"""Check how the state of a workload of Kueue is described."""

from __future__ import annotations

from orchestrator.targets.kubernetes import kueue


def test_state_of_a_kueue_workload_is_described() -> None:
    waits = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"}
    assert kueue.describe_workload({"status": {"conditions": [waits]}}, "ClusterQueue cpu") == (
        "waits for quota in ClusterQueue cpu: insufficient unused quota"
    )
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for x"}
    message = kueue.describe_workload({"status": {"conditions": [waits, evicted]}}, "ClusterQueue cpu")
    assert message.startswith("suspended by Kueue (Preempted): for x; it resumes from its newest")
