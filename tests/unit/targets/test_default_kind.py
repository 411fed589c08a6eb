"""Which kind of job a run becomes where nobody names one, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import PlanError
from orchestrator.planning.plan import Plan
from orchestrator.targets.kubernetes import findings
from orchestrator.targets.kubernetes.decisions import Inputs
from orchestrator.targets.kubernetes.manifests.kinds import Installed, default_kind
from orchestrator.targets.kubernetes.plan import plan_kube
from tests.conftest import make_stack
from tests.unit.targets.kubernetes.test_plan_kube import QA, REQUEST, SETTINGS, SITE

BOTH = Installed(launchers=("trainjob", "pytorchjob"))


def decide(installed: Installed, launcher: str | None = None, min_nodes: int | None = None) -> Plan:
    kube = replace(SETTINGS, min_nodes=min_nodes)
    inputs = Inputs(recipe=QA, stack=make_stack(), kube=kube, installed=installed)
    return plan_kube(replace(REQUEST, launcher=launcher, max_restarts=1), inputs, SITE)


def launcher_of(plan: Plan) -> tuple[str, str]:
    (told,) = [one for one in plan.run.decisions if one.topic == "launcher"]
    return told.value, told.reason


@pytest.mark.parametrize(
    ("installed", "kind", "why"),
    [
        (BOTH, "TrainJob", "torchrun; the cluster has it, and it outlives PyTorchJob"),
        (Installed(launchers=("trainjob",)), "TrainJob", "torchrun; the cluster has it"),
        (Installed(launchers=("pytorchjob",)), "PyTorchJob", "torchrun; the cluster has no TrainJob"),
        (Installed(launchers=("job",)), "Job", "torchrun; the cluster has no TrainJob and no PyTorchJob"),
        (
            Installed(unknown="no cluster could be asked (x)"),
            "TrainJob",
            "torchrun; assumed: no cluster could be asked (x)",
        ),
    ],
)
def test_the_default_is_what_the_cluster_has(installed: Installed, kind: str, why: str) -> None:
    found, reason = launcher_of(decide(installed))
    assert (found.partition(" ")[0], reason) == (kind, why)


def test_what_is_named_is_not_chosen() -> None:
    assert launcher_of(decide(Installed(), "pytorchjob")) == ("PyTorchJob kubeflow.org/v1", "torchrun")


def test_a_run_that_may_shrink_is_a_pytorchjob() -> None:
    found, reason = launcher_of(decide(BOTH, min_nodes=1))
    assert found.startswith("PyTorchJob")
    assert reason.endswith("the only kind that continues with fewer pods")
    with pytest.raises(PlanError, match=r"has no PyTorchJob\."):
        default_kind(Installed(launchers=("trainjob",)), elastic=True)


def test_the_check_says_which_and_why() -> None:
    both = {"trainjob": ("v1alpha1",), "pytorchjob": ("v1",)}
    assert findings.default_finding(both).words == (
        "--launcher trainjob: the cluster has it, and it outlives PyTorchJob"
    )
    old = findings.default_finding({"trainjob": ("v0",), "pytorchjob": ("v1",)})
    assert old.words == "--launcher pytorchjob: the cluster has no TrainJob"
