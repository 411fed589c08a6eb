"""Check which kind of job is the default, and the reason that is reported for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Plan
from orchestrator.targets.kubernetes import findings
from orchestrator.targets.kubernetes.decisions import Inputs
from orchestrator.targets.kubernetes.manifests.kinds import Installed, default_kind
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from tests.conftest import make_stack
from tests.unit.targets.kubernetes.test_plan_kube import QA, REQUEST, SETTINGS, SITE

BOTH = Installed(launchers=("trainjob", "pytorchjob"))


def decide(installed: Installed, launcher: str | None = None, min_nodes: int | None = None) -> Plan:
    kubernetes = replace(SETTINGS, min_nodes=min_nodes)
    inputs = Inputs(recipe=QA, stack=make_stack(), kubernetes=kubernetes, installed=installed)
    return plan_kubernetes(replace(REQUEST, launcher=launcher, max_restarts=1), inputs, SITE)


def launcher_of(plan: Plan) -> tuple[str, str]:
    (decision,) = [decision for decision in plan.run.decisions if decision.topic == "launcher"]
    return decision.value, decision.reason


@pytest.mark.parametrize(
    ("installed", "kind", "why"),
    [
        (BOTH, "TrainJob", "torchrun; the cluster has it, and Kubeflow discontinues PyTorchJob"),
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
def test_the_default_is_what_the_cluster_has(installed: Installed, kind: str, why: str) -> None:
    launcher, reason = launcher_of(decide(installed))
    assert (launcher.partition(" ")[0], reason) == (kind, why)


def test_a_requested_launcher_wins() -> None:
    assert launcher_of(decide(Installed(), "pytorchjob")) == ("PyTorchJob kubeflow.org/v1", "torchrun")


def test_a_run_that_may_shrink_is_a_pytorchjob() -> None:
    launcher, reason = launcher_of(decide(BOTH, min_nodes=1))
    assert launcher.startswith("PyTorchJob")
    assert reason.endswith("the only kind that continues with fewer pods")
    with pytest.raises(PlanError, match=r"has no PyTorchJob\."):
        default_kind(Installed(launchers=("trainjob",)), elastic=True)


def test_the_check_reports_the_default_and_its_reason() -> None:
    versions = {"trainjob": ("v1alpha1",), "pytorchjob": ("v1",)}
    assert findings.default_finding(versions).message == (
        "--launcher trainjob: the cluster has it, and Kubeflow discontinues PyTorchJob"
    )
    old = findings.default_finding({"trainjob": ("v0",), "pytorchjob": ("v1",)})
    assert old.message == "--launcher pytorchjob: the cluster has no TrainJob"
