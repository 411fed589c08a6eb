"""Check that `--k8s-patch` applies a user's changes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.planning.resolve import Inputs
from orchestrator.targets.kubernetes.patch import patched
from orchestrator.targets.kubernetes.plan import PodInputs, plan_kubernetes
from tests.conftest import make_stack
from tests.support.kubernetes_plans import QA, REQUEST, SETTINGS, SITE, make_plan, objects

POD = "/spec/template/spec"
JOB = objects(make_plan("job"))


def make_operation(op: str, path: str, value: Any = None, kind: str = "Job") -> dict[str, Any]:
    return {"kind": kind, "op": op, "path": path, **({} if value is None else {"value": value})}


def test_patches_are_applied_and_reported() -> None:
    operations = (
        make_operation("add", f"{POD}/hostNetwork", True),
        make_operation("replace", "/spec/backoffLimit", 7),
        make_operation("add", "/metadata/labels/team", "a"),
    )
    inputs = PodInputs(loaded=Inputs(recipe=QA, stack=make_stack()), kubernetes=SETTINGS, patch=operations)
    plan = plan_kubernetes(replace(REQUEST, launcher="job"), inputs, SITE)
    job = objects(plan)[-1]
    assert job["spec"]["template"]["spec"]["hostNetwork"] is True
    assert job["spec"]["backoffLimit"] == 7
    assert job["metadata"]["labels"]["team"] == "a"
    descriptions = [decision.value for decision in plan.run.decisions if decision.topic == "patch"]
    assert descriptions[0] == f"add {POD}/hostNetwork of Job"
    assert len(descriptions) == len(operations)
    assert objects(make_plan("job")) == JOB


def test_patch_that_cannot_be_applied_or_hides_an_object_is_refused() -> None:
    for operation, problem in (
        (make_operation("remove", f"{POD}/hostNetwork"), "can't remove a non-existent object"),
        (make_operation("replace", "/spec/x", 1, kind="Pod"), "this run has ConfigMap, Service, Job"),
        (make_operation("frobnicate", "/spec", 1), "frobnicate /spec of Job"),
        (make_operation("replace", "/metadata/name", "x"), "changes the name or the labels"),
        (make_operation("replace", "/metadata/labels/orch~1run", "x"), "changes the name or the labels"),
        (make_operation("replace", "", 3), "replace  of Job"),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            patched(JOB, [operation])
