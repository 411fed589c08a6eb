"""Plans of runs on Kubernetes, and the manifests of their objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import ApplyObjects, Plan
from orchestrator.planning.request import RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs
from orchestrator.stacks.stack import Stack
from orchestrator.targets.kubernetes.plan import PodInputs, plan_kubernetes
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from tests.conftest import make_stack

QA = Recipe(
    name="qa",
    script="/here/train/qa/qa.py",
    resumes=True,
    elastic=True,
    defaults={"epochs": 2, "train_file": "/here/train/qa/data/train.json"},
    paths=("train_file",),
    precisions={"bf16": ("--bf16",), "fp32": ()},
)
OWN_SCRIPT = Recipe(name="own", script="/home/me/own script.py", own_script=True)
SETTINGS = KubernetesSettings(image="registry.example/orch:current", namespace="team", cpu="8")
SITE = RunPaths(
    run_id="20260101-120000-qa-0000",
    run_dir="/orch/runs/20260101-120000-qa-0000",
    train="/opt/orch/train",
    train_here="/here/train",
    started_by="me@here",
    created=1.0,
)
OWN_CONTENTS = {OWN_SCRIPT.script: b"print('hello')\n"}
REQUEST = TrainRequest(recipe="qa", nodes=2, ppn=2)


def make_plan(
    launcher: str | None = "pytorchjob",
    *,
    request: TrainRequest = REQUEST,
    recipe: Recipe = QA,
    kubernetes: KubernetesSettings = SETTINGS,
    run_paths: RunPaths = SITE,
    stack: Stack | None = None,
    **files: Any,
) -> Plan:
    """Return the plan of a request; by default of a recipe on two pods of two ranks."""
    inputs = PodInputs(loaded=Inputs(recipe=recipe, stack=stack or make_stack()), kubernetes=kubernetes, **files)
    return plan_kubernetes(replace(request, launcher=launcher), inputs, run_paths)


def objects(plan: Plan) -> tuple[dict[str, Any], ...]:
    """Return the objects that a plan creates."""
    (step,) = plan.steps
    assert isinstance(step, ApplyObjects)
    return step.objects


def config(plan: Plan) -> dict[str, Any]:
    """Return the content of pod.json."""
    return dict(json.loads(objects(plan)[0]["data"]["pod.json"]))


def containers(value: Any) -> list[dict[str, Any]]:
    """Return all containers in these objects, at any depth."""
    return [container for spec in pod_specs(value) for container in spec["containers"]]


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod specs in these objects: the mappings that have containers."""
    if isinstance(value, list):
        for item in value:
            yield from pod_specs(item)
    elif isinstance(value, dict):
        if "containers" in value:
            yield value
        yield from pod_specs(list(value.values()))
