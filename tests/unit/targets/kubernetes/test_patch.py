"""Check that `--k8s-patch` applies a user's changes and protects what orch needs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.hostlist import NodeCount
from orchestrator.planning.resolve import Inputs
from orchestrator.targets.kubernetes.decisions import PodInputs
from orchestrator.targets.kubernetes.patch import patched
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from tests.conftest import make_stack
from tests.support.kubernetes_plans import CASES, QA, REQUEST, SETTINGS, SITE, make_plan, objects

POD = "/spec/template/spec"
JOB = objects(make_plan("job"))


def make_operation(op: str, path: str, value: Any = None, kind: str = "Job") -> dict[str, Any]:
    return {"kind": kind, "op": op, "path": path, **({} if value is None else {"value": value})}


def test_patches_are_applied_and_reported() -> None:
    operations = (
        make_operation("add", f"{POD}/hostNetwork", True),
        make_operation("add", f"{POD}/containers/-", {"name": "sidecar", "image": "x"}),
        make_operation("add", f"{POD}/volumes/0", {"name": "own", "emptyDir": {}}),
        make_operation("replace", "/spec/backoffLimit", 7),
        make_operation("add", "/metadata/labels/team", "a"),
    )
    inputs = PodInputs(loaded=Inputs(recipe=QA, stack=make_stack()), kubernetes=SETTINGS, patch=operations)
    request = REQUEST.__class__(recipe="qa", nodes=NodeCount(2), ppn=2, launcher="job")
    plan = plan_kubernetes(request, inputs, SITE)
    job = objects(plan)[-1]
    assert job["spec"]["template"]["spec"]["hostNetwork"] is True
    assert job["spec"]["backoffLimit"] == 7
    assert job["metadata"]["labels"]["team"] == "a"
    descriptions = [decision.value for decision in plan.run.decisions if decision.topic == "patch"]
    assert descriptions[0] == f"add {POD}/hostNetwork of Job"
    assert len(descriptions) == len(operations)
    assert objects(make_plan("job")) == JOB


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (make_operation("replace", "/spec/nothing/here", 1), "replace /spec/nothing/here of Job"),
        (make_operation("remove", f"{POD}/hostNetwork"), "can't remove a non-existent object"),
        (make_operation("replace", "/spec/x", 1, kind="Pod"), "this run has Service, Job"),
        (make_operation("replace", "/data/run.json", "x", kind="ConfigMap"), "kind ConfigMap"),
        (make_operation("frobnicate", "/spec", 1), "frobnicate /spec of Job"),
        ({"kind": "Job", "op": "add"}, "add None of Job"),
        (make_operation("test", "/spec/backoffLimit", 3), "test /spec/backoffLimit"),
        (make_operation("replace", "/metadata/name", "x"), "changes metadata.name"),
        (make_operation("remove", "/metadata/labels/orch~1run"), "changes metadata.labels[orch/run]"),
        (make_operation("replace", f"{POD}/containers/0/command", ["x"]), "which orch needs"),
        (make_operation("remove", f"{POD}/containers/0"), "which orch needs"),
        (make_operation("remove", f"{POD}/volumes/0"), "volumes[orch-data]"),
        (make_operation("replace", "/spec/completions", 9), "changes spec.completions"),
        (make_operation("replace", f"{POD}/containers/0/env/9/value", "x"), "which orch needs"),
        (make_operation("remove", "/spec"), "which orch needs"),
        (make_operation("replace", "", {}), "which orch needs"),
        (make_operation("replace", "", 3), "which orch needs"),
        (make_operation("remove", "/spec/selector", kind="Service"), "spec.selector"),
    ],
)
def test_patch_that_fails_or_changes_what_orch_needs_is_refused(operation: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        patched(JOB, [operation])


@pytest.mark.parametrize("case", CASES)
def test_labels_cannot_be_removed_from_any_kind(case: str) -> None:
    manifests = objects(make_plan(CASES[case][0]))
    kind = manifests[-1]["kind"]
    with pytest.raises(PlanError, match="which orch needs"):
        patched(manifests, [make_operation("remove", "/metadata/labels", kind=kind)])
