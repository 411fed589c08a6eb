"""Check that the recorded request of a run is the request from which it was planned."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any

import pytest
from orch_node.protocol.values import ProtocolError

from orchestrator.model.hosts import NodeCount, NodePattern
from orchestrator.planning.recorded_request import parse, render
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.targets.batch.options import SlurmOptions
from orchestrator.targets.kubernetes.options import KubernetesOptions

KINDS: dict[str | None, type[TargetOptions]] = {"slurm": SlurmOptions, "k8s": KubernetesOptions}


def read(text: str) -> TrainRequest:
    return parse(json.loads(text), KINDS.get)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(TrainRequest(recipe="bert-qa"), id="defaults"),
        pytest.param(
            TrainRequest(
                recipe="train.py", script_args=("--lr", "1"), nodes=NodePattern("node[1-2]"), ppn=2, ipex=True
            ),
            id="nodes by name",
        ),
        pytest.param(
            TrainRequest(recipe="q", recipe_path=(PurePath("a b"),), env=("A=1", "B"), env_file=PurePath("e")),
            id="paths",
        ),
        pytest.param(
            TrainRequest(
                recipe="q",
                on="k8s",
                nodes=NodeCount(2),
                stall_timeout=5.0,
                options=(KubernetesOptions(k8s=("cpu=2",), k8s_file=Path("x.toml")),),
            ),
            id="options of a target",
        ),
    ],
)
def test_request_is_recorded_without_loss(request_: TrainRequest) -> None:
    assert read(json.dumps(render(request_))) == request_


def test_options_of_other_targets_are_not_recorded() -> None:
    request = TrainRequest(recipe="q", on="slurm", options=(SlurmOptions(slurm=("time=5",)), KubernetesOptions()))
    assert render(request) == {"recipe": "q", "on": "slurm", "options": {"slurm": ["time=5"]}}


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        pytest.param({}, "no 'recipe'", id="nothing"),
        pytest.param({"recipe": "q", "speed": 1}, "unknown key 'speed'", id="unknown"),
        pytest.param({"recipe": "q", "ppn": "2"}, "ppn is '2', not of type int", id="type"),
        pytest.param({"recipe": "q", "env": "A=1"}, "env is 'A=1', not a list", id="not a list"),
        pytest.param({"recipe": "q", "ipex": 1}, "not of type bool", id="number for a switch"),
        pytest.param({"recipe": "q", "options": {}}, "the run has none", id="options without a target"),
    ],
)
def test_damaged_request_is_an_error_that_names_the_key(recorded: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read(json.dumps(recorded))
