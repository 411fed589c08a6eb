"""Resolve requests for known nodes, and for those that are chosen later, and record them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.recorded_request import parse, render
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.planning.resolve import (
    MEASURED_SPLIT,
    Inputs,
    Resolved,
    RunNodes,
    count_nodes,
    later_nodes,
    resolve,
    torch_decisions,
)
from orchestrator.stacks.stack import Stack
from orchestrator.targets.batch.options import SLURM
from orchestrator.targets.kubernetes.options import KubernetesOptions
from tests.conftest import make_facts
from tests.support.plans import LOCAL_SITE, ONE_NODE, QA_RECIPE, QA_REQUEST, USER_SCRIPT, known_nodes

COUNTED = later_nodes("pod", 3, ppn=2, gpus=0, threads=2, reason="as tested", software="the image has")
START: Any = {"run_paths": LOCAL_SITE, "launcher": "torchrun", "mpi": Decision(topic="mpi", value="")}


def resolved(stack: Stack, nodes: RunNodes, *, contained: bool = False, **fields: object) -> Resolved:
    inputs = Inputs(recipe=QA_RECIPE, stack=stack)
    return resolve(replace(QA_REQUEST, **fields), inputs, nodes, **START, contained=contained)


def test_ranks_of_counted_nodes_get_their_cores_later(test_stack: Stack) -> None:
    result = resolved(test_stack, COUNTED)
    assert result.layout.value.nodes == ("pod-0", "pod-1", "pod-2")
    assert {(place.cpus, place.threads) for place in result.layout.value.rank_places} == {((), 2)}
    assert result.layout.decisions == (Decision(topic="ranks", value="6", reason="as tested"),)
    assert result.precision.value == "auto", "only the ranks know the instructions of their node"


def test_measured_split_is_advised_on_nodes_of_the_measured_kind_only(test_stack: Stack) -> None:
    for numa, cores, flag, ppn, advised in (
        (1, 16, "amx_bf16", None, True),  # measured
        (1, 16, "amx_bf16", 1, False),  # requested
        (2, 8, "amx_bf16", None, False),  # two NUMA nodes
        (1, 32, "amx_bf16", None, False),  # more cores
        (1, 16, "avx512_bf16", None, False),  # no AMX
    ):
        facts = replace(
            make_facts(numa=numa, cores=cores, flags=("avx512f", flag)), packages=ONE_NODE[0].facts.packages
        )
        nodes = known_nodes((replace(ONE_NODE[0], facts=facts),), ppn=ppn or 1)
        (decision,) = resolved(test_stack, nodes, ppn=ppn).layout.decisions
        assert (MEASURED_SPLIT in decision.reason) == advised


def test_different_builds_of_torch_are_named() -> None:
    first = ONE_NODE[0]
    second = replace(first, name="second", facts=replace(first.facts, packages={"torch": "9.9+site"}))
    assert not list(torch_decisions((first, first)))
    (decision,) = torch_decisions((first, second))
    assert "9.9+site on second" in decision.value


def test_stack_of_counted_nodes_is_checked_only_if_it_is_known(test_stack: Stack) -> None:
    lacking = replace(ONE_NODE[0], facts=replace(ONE_NODE[0].facts, packages={}))
    assert resolved(test_stack, COUNTED).stack.value.name == test_stack.name
    with pytest.raises(PlanError, match="torch"):
        resolved(test_stack, replace(COUNTED, with_stack=(lacking,)))
    current = load.stack("current")
    without_bindings = {name: version for name, version in current.requirements.items() if name != "oneccl-bind-pt"}
    for packages, advises_gloo in ((without_bindings, True), ({}, False)):
        with pytest.raises(PlanError) as caught:
            current.check(replace(lacking, facts=replace(lacking.facts, packages=packages)))
        assert ("--backend gloo" in caught.value.hint) == advises_gloo


def test_accelerate_passes_the_precision_of_a_script_on_to_counted_nodes(test_stack: Stack) -> None:
    inputs, request = Inputs(recipe=USER_SCRIPT, stack=test_stack), replace(QA_REQUEST, precision="fp32")
    assert resolve(request, inputs, COUNTED, **{**START, "launcher": "accelerate"}).precision.value == "fp32"
    with pytest.raises(PlanError, match="applies to recipes only"):
        resolve(request, inputs, COUNTED, **START)


def test_nodes_that_cannot_be_counted_are_refused() -> None:
    for nodes, count in ((4, 4), (None, 2)):
        assert count_nodes(replace(QA_REQUEST, nodes=nodes), default=2, limit=9, hint="") == count
    for nodes, message in (
        (None, "needs a number of nodes from 1 to 9, and --nodes is missing"),
        ("node[1-3]", "needs a number of nodes from 1 to 9, not --nodes node[1-3]"),
        (0, "not --nodes 0"),  # none
        (10, "not --nodes 10"),  # too many
    ):
        with pytest.raises(PlanError, match=re.escape(message)):
            count_nodes(replace(QA_REQUEST, on="slurm", nodes=nodes), None, limit=9, hint="")


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
