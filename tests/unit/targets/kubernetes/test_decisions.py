"""Check the kind of job, the cores of ranks, and requests that are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from orch_node.pod.torchrun_rank import entry_of, environment
from orch_node.protocol import pod
from orch_node.standalone import facts

from orchestrator.errors import PlanError
from orchestrator.model.hostlist import NodeCount, NodePattern
from orchestrator.planning.plan import Plan
from orchestrator.planning.resolve import Inputs
from orchestrator.targets.kubernetes.decisions import PodInputs
from orchestrator.targets.kubernetes.load import with_assignment
from orchestrator.targets.kubernetes.manifests.kinds import Installed, default_kind
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from tests.conftest import make_stack
from tests.support.kubernetes_plans import QA, REQUEST, SETTINGS, SITE, config, make_plan, objects

BOTH_KINDS = Installed(launchers=("trainjob", "pytorchjob"))


def plan_for(installed: Installed, launcher: str | None = None, min_nodes: int = 0) -> Plan:
    inputs = PodInputs(loaded=Inputs(recipe=QA, stack=make_stack()), kubernetes=SETTINGS, installed=installed)
    return plan_kubernetes(replace(REQUEST, launcher=launcher, max_restarts=1, min_nodes=min_nodes), inputs, SITE)


def launcher_of(plan: Plan) -> tuple[str, str]:
    (decision,) = [decision for decision in plan.run.decisions if decision.topic == "launcher"]
    return decision.value, decision.reason


@pytest.mark.parametrize(
    ("installed", "kind", "expected_reason"),
    [
        (BOTH_KINDS, "TrainJob", "torchrun; the cluster has it, and Kubeflow discontinues PyTorchJob"),
        (Installed(launchers=("trainjob",)), "TrainJob", "torchrun; the cluster has it"),
        (Installed(launchers=("pytorchjob",)), "PyTorchJob", "torchrun; the cluster has no TrainJob"),
        (Installed(launchers=("job",)), "Job", "torchrun; the cluster has no TrainJob and no PyTorchJob"),
        (
            Installed(query_problem="no cluster could be asked (x)"),
            "TrainJob",
            "torchrun; assumed: no cluster could be asked (x)",
        ),
    ],
)
def test_default_is_what_the_cluster_has(installed: Installed, kind: str, expected_reason: str) -> None:
    launcher, reason = launcher_of(plan_for(installed))
    assert (launcher.partition(" ")[0], reason) == (kind, expected_reason)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915"])
@pytest.mark.parametrize("launcher", ["trainjob", "pytorchjob", "job"])
def test_pods_request_gpus(launcher: str, resource: str) -> None:
    settings = with_assignment(with_assignment(SETTINGS, "gpu=8"), f"gpu_resource={resource}")
    plan = make_plan(launcher, request=replace(REQUEST, backend="nccl", ppn=None), kubernetes=settings)
    assert f'"{resource}": "8"' in json.dumps(objects(plan))
    assert [decision.value for decision in plan.decisions if decision.topic in ("ranks", "gpus")] == [
        f"8 {resource} in each pod",
        "16",
    ]


@pytest.mark.parametrize(
    ("ppn", "changes", "problem"),
    [
        (None, {}, "--backend nccl: the pods request no GPUs"),
        (4, {"gpu": 2}, "--ppn 4, but each worker has 2 GPUs"),
        (1, {"gpu": -1}, "gpu = -1"),
        (1, {"gpu": 1, "gpu_resource": "gpu"}, "'gpu' are not a number and a resource"),
    ],
    ids=["none", "too few", "negative", "no resource"],
)
def test_gpus_that_pods_cannot_have_are_refused(ppn: int | None, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        make_plan(request=replace(REQUEST, backend="nccl", ppn=ppn), kubernetes=replace(SETTINGS, **changes))


def test_requested_launcher_wins() -> None:
    assert launcher_of(plan_for(Installed(), "pytorchjob")) == ("PyTorchJob kubeflow.org/v1", "torchrun")


def test_run_that_may_shrink_is_a_pytorchjob() -> None:
    launcher, reason = launcher_of(plan_for(BOTH_KINDS, min_nodes=1))
    assert launcher.startswith("PyTorchJob")
    assert reason.endswith("the only kind that continues with fewer pods")
    with pytest.raises(PlanError, match=r"has no PyTorchJob\."):
        default_kind(Installed(launchers=("trainjob",)), elastic=True)


@pytest.mark.parametrize(
    ("cpu", "ppn"), [pytest.param("500m", 1, id="half-a-core"), pytest.param("1", 2, id="two-ranks-on-a-core")]
)
def test_ranks_may_share_cores_if_requested(cpu: str, ppn: int) -> None:
    request = replace(REQUEST, ppn=ppn)
    with pytest.raises(PlanError, match=f"--ppn {ppn}") as refused:
        make_plan(request=request, kubernetes=replace(SETTINGS, cpu=cpu))
    assert "share_cores=true" in refused.value.hint
    plan = make_plan(request=request, kubernetes=replace(SETTINGS, cpu=cpu, share_cores=True))
    assert {placement.threads for placement in plan.layout.rank_places} == {1}
    assert any("ranks share cores" in decision.reason for decision in plan.run.decisions)
    worker = objects(plan)[1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["containers"][0]["resources"]["requests"]["cpu"] == cpu


@pytest.mark.parametrize("local", [0, 1])
def test_ranks_that_share_a_core_are_not_pinned(local: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin no rank, because a pinned rank would keep the core from the others."""
    request = replace(REQUEST, ppn=2)
    plan = make_plan(request=request, kubernetes=replace(SETTINGS, cpu="1", share_cores=True))
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    placement = entry_of(pod.parse(json.dumps(config(plan))), "orch-x-worker-0", local, [7])
    assert placement.cpus == ()


def test_ranks_with_exclusive_cpus_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPUs 0 and 4, 1 and 5, 2 and 6, 3 and 7 are hardware threads of one core.
    monkeypatch.setattr(facts, "topology", lambda cpu: {"cpu": cpu, "core": cpu % 4, "socket": 0, "numa": 0})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    pod_plan = pod.parse(json.dumps(config(make_plan(request=replace(REQUEST, ppn=2)))))
    placements = []
    for local in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", local)
        placements.append(entry_of(pod_plan, "orch-x-worker-0", int(local), [*range(8)]))
    assert [(placement.cpus, placement.threads) for placement in placements] == [((0, 1), 2), ((2, 3), 2)]


def test_ranks_of_a_resumed_job_know_that_it_is_not_their_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They compare their weights more strictly then."""
    monkeypatch.setenv("MASTER_ADDR", "orch-x-worker-0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    resumed = pod.parse(json.dumps({**config(make_plan()), "attempt": 3}))
    assert environment(resumed)["ORCH_ATTEMPT"] == "3"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodes": None}, "needs a number of nodes"),
        ({"nodes": NodePattern("node[1-3]")}, "needs a number of nodes"),
        ({"nodes": NodeCount(0)}, "needs a number of nodes"),
        ({"ppn": 9}, "--ppn 9, but a pod has 8 CPUs"),
        ({"stall_timeout": -1.0}, "expected 0 or more"),
    ],
)
def test_impossible_requests_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        make_plan(request=replace(REQUEST, **change))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image": ""}, "No image"),
        ({"image": "two words"}, "not a valid image name"),
        ({"namespace": "Team A"}, "namespace = 'Team A'"),
        ({"claim": "a_b"}, "claim"),
        ({"memory": "64 GB"}, "memory = '64 GB'"),
        ({"cpu": "-1"}, "cpu = '-1'"),
        ({"mount": "data"}, "not an absolute path"),
        ({"node_selector": {"a b": "c"}}, "is not a valid label"),
        ({"uid": 0}, "not root's"),
    ],
)
def test_invalid_settings_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        make_plan(kubernetes=replace(SETTINGS, **change))


def test_unknown_launcher_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="does not run on Kubernetes") as caught:
        make_plan("pytorch-job")
    assert caught.value.hint == "Did you mean 'pytorchjob'?"
