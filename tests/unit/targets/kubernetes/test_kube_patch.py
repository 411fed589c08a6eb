"""Check that `--k8s-patch` applies a user's changes and protects what orch needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.targets.kubernetes.decisions import Inputs
from orchestrator.targets.kubernetes.load import read_patch
from orchestrator.targets.kubernetes.patch import patched
from orchestrator.targets.kubernetes.plan import plan_kubernetes
from tests.conftest import make_stack
from tests.unit.targets.kubernetes.test_plan_kube import CASES, QA, REQUEST, SETTINGS, SITE, decide, objects

POD = "/spec/template/spec"
JOB = objects(decide("job"))


def operation(op: str, path: str, value: Any = None, kind: str = "Job") -> dict[str, Any]:
    return {"kind": kind, "op": op, "path": path, **({} if value is None else {"value": value})}


def test_patches_are_applied_and_reported() -> None:
    operations = (
        operation("add", f"{POD}/hostNetwork", True),
        operation("add", f"{POD}/containers/-", {"name": "sidecar", "image": "x"}),
        operation("add", f"{POD}/volumes/0", {"name": "own", "emptyDir": {}}),
        operation("replace", "/spec/backoffLimit", 7),
        operation("add", "/metadata/labels/team", "a"),
    )
    inputs = Inputs(recipe=QA, stack=make_stack(), kubernetes=SETTINGS, patch=operations)
    request = REQUEST.__class__(recipe="qa", nodes="2", ppn=2, launcher="job")
    plan = plan_kubernetes(request, inputs, SITE)
    job = objects(plan)[-1]
    assert job["spec"]["template"]["spec"]["hostNetwork"] is True
    assert job["spec"]["backoffLimit"] == 7
    assert job["metadata"]["labels"]["team"] == "a"
    descriptions = [decision.value for decision in plan.run.decisions if decision.topic == "patch"]
    assert descriptions[0] == f"add {POD}/hostNetwork of Job"
    assert len(descriptions) == len(operations)
    assert objects(decide("job")) == JOB


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (operation("replace", "/spec/nothing/here", 1), "replace /spec/nothing/here of Job"),
        (operation("remove", f"{POD}/hostNetwork"), "can't remove a non-existent object"),
        (operation("replace", "/spec/x", 1, kind="Pod"), "this run has Service, Job"),
        (operation("replace", "/data/run.json", "x", kind="ConfigMap"), "kind ConfigMap"),
        (operation("frobnicate", "/spec", 1), "frobnicate /spec of Job"),
        ({"kind": "Job", "op": "add"}, "add None of Job"),
        (operation("test", "/spec/backoffLimit", 3), "test /spec/backoffLimit"),
        (operation("replace", "/metadata/name", "x"), "changes metadata.name"),
        (operation("remove", "/metadata/labels/orch~1run"), "changes metadata.labels[orch/run]"),
        (operation("replace", f"{POD}/containers/0/command", ["x"]), "which orch needs"),
        (operation("remove", f"{POD}/containers/0"), "which orch needs"),
        (operation("remove", f"{POD}/volumes/0"), "volumes[orch-data]"),
        (operation("replace", "/spec/completions", 9), "changes spec.completions"),
        (operation("replace", f"{POD}/containers/0/env/9/value", "x"), "which orch needs"),
        (operation("remove", "/spec"), "which orch needs"),
        (operation("replace", "", {}), "which orch needs"),
        (operation("replace", "", 3), "which orch needs"),
        (operation("remove", "/spec/selector", kind="Service"), "spec.selector"),
    ],
)
def test_invalid_values_are_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        patched(JOB, [asked])


@pytest.mark.parametrize("case", CASES)
def test_labels_cannot_be_removed_from_any_kind(case: str) -> None:
    manifests = objects(decide(CASES[case][0]))
    kind = manifests[-1]["kind"]
    with pytest.raises(PlanError, match="which orch needs"):
        patched(manifests, [operation("remove", "/metadata/labels", kind=kind)])


def test_the_file_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text("- {kind: Job, op: add, path: /spec/x, value: 1}\n")
    assert read_patch(path) == (operation("add", "/spec/x", 1),)
    for text in ("kind: Job", "- 3", "[", "{"):
        path.write_text(text)
        with pytest.raises(RequestError, match="--k8s-patch"):
            read_patch(path)
    with pytest.raises(RequestError, match="No such file"):
        read_patch(tmp_path / "none")
    assert read_patch(None) == ()
