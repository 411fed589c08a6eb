"""Check that the recorded request of a run is the request from which it was planned."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import pytest
from orch_node.protocol.values import ProtocolError

from orchestrator.planning.recorded_request import parse, render
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.targets.batch.options import SLURM
from orchestrator.targets.kubernetes.options import KubernetesOptions

KINDS: dict[str | None, type[TargetOptions]] = {"slurm": SLURM.options, "k8s": KubernetesOptions}


def test_request_is_recorded_without_loss() -> None:
    kubernetes = KubernetesOptions(k8s=("cpu=2",), k8s_file=Path("x.toml"))
    for request_ in (
        TrainRequest(recipe="train.py", script_args=("--lr", "1"), nodes="node[1-2]", ppn=2, ipex=True),
        TrainRequest(recipe="q", recipe_path=(PurePath("a b"),), env=("A=1", "B"), env_file=PurePath("e")),
        TrainRequest(recipe="q", on="k8s", nodes=2, stall_timeout=5.0, options=(kubernetes,)),
    ):
        assert parse(json.loads(json.dumps(render(request_))), KINDS.get) == request_


def test_secrets_in_packages_are_masked() -> None:
    request_ = TrainRequest(recipe="q", packages=("lib @ https://me:pa55word@host/lib.whl", "peft==0.18"))
    assert render(request_)["packages"] == ["lib @ https://me:<masked>@host/lib.whl", "peft==0.18"]


def test_damaged_request_is_an_error_that_names_the_key() -> None:
    for recorded, message in (
        ({}, "no 'recipe'"),  # nothing
        ({"recipe": "q", "speed": 1}, "unknown key 'speed'"),
        ({"recipe": "q", "env": "A=1"}, "env is 'A=1': expected a valid array"),
        ({"recipe": "q", "options": {}}, "the run has none"),  # options without a target
    ):
        with pytest.raises(ProtocolError, match=message):
            parse(recorded, KINDS.get)
