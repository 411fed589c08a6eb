"""Check runs with less than one CPU per rank, as on small test clusters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from orch_node.pod.torchrun_rank import placement_of
from orch_node.protocol import pod

from orchestrator.errors import PlanError, RequestError
from orchestrator.targets.kubernetes.load import kubernetes_settings
from tests.unit.targets.kubernetes.test_plan_kube import REQUEST, SETTINGS, config, decide, objects


@pytest.mark.parametrize(
    ("cpu", "ppn"), [pytest.param("500m", 1, id="half-a-core"), pytest.param("1", 2, id="two-ranks-on-a-core")]
)
def test_ranks_may_share_cores_if_asked_for(cpu: str, ppn: int) -> None:
    request = replace(REQUEST, ppn=ppn)
    with pytest.raises(PlanError, match=f"--ppn {ppn}") as refused:
        decide(request=request, kubernetes=replace(SETTINGS, cpu=cpu))
    assert "share_cores=true" in refused.value.hint
    plan = decide(request=request, kubernetes=replace(SETTINGS, cpu=cpu, share_cores=True))
    assert {placement.threads for placement in plan.layout.rank_places} == {1}
    assert any("ranks share cores" in decision.reason for decision in plan.run.decisions)
    worker = objects(plan)[1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["containers"][0]["resources"]["requests"]["cpu"] == cpu


@pytest.mark.parametrize("local", [0, 1])
def test_ranks_that_share_a_core_are_not_pinned(local: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin no rank, because a pinned rank would keep the core from the others."""
    request = replace(REQUEST, ppn=2)
    plan = decide(request=request, kubernetes=replace(SETTINGS, cpu="1", share_cores=True))
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    placement = placement_of(pod.parse(json.dumps(config(plan))), "orch-x-worker-0", local, [7])
    assert placement.cpus == ()


def test_the_switch_is_true_or_false() -> None:
    assert kubernetes_settings(None, ["share_cores=true"]).share_cores is True
    assert kubernetes_settings(None, ["share_cores=false"]).share_cores is False
    with pytest.raises(RequestError, match="expected true or false"):
        kubernetes_settings(None, ["share_cores=yes"])
