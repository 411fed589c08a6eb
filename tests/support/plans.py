"""Recipes, requests, places and nodes from which tests make plans."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orch_node import content_store
from orch_node.protocol.record import RunNode

from orchestrator.files import TRAIN
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice
from orchestrator.model.facts import Facts
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import StoreFolder
from orchestrator.planning.request import RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs, RunNodes
from orchestrator.stacks.stack import Bindings, Stack
from tests.conftest import make_facts, make_node

GOLDEN = Path(__file__).parents[1] / "golden"
LOCAL_SITE = RunPaths(
    run_id="20260101-120000-qa-0000",
    run_dir="/runs/qa-0000",
    train="/orch/train",
    train_here="/orch/train",
    store="/state/store",
    started_by="me@here",
    created=1.0,
)
REMOTE_SITE = replace(
    LOCAL_SITE, run_id="r", run_dir="/opt/orch/runs/r", train="/opt/orch/train", store="/opt/orch/store"
)
QA_RECIPE = Recipe(
    name="qa",
    script="/orch/train/qa/qa.py",
    resumes=True,
    ipex=True,
    defaults={"epochs": 2},
    precisions={"bf16": ("--bf16",), "fp32": ()},
)
USER_SCRIPT = Recipe(name="own", script="/home/me/own script.py", own_script=True)
QA_REQUEST = TrainRequest(recipe="qa")
BINDINGS = Bindings(version="2.13.0+orch.1", built_by="orch", module="bindings_module", setvars="", oneccl="2022")


def read_golden(name: str, text: str) -> str:
    """Return a file in tests/golden, which gets this text first if ORCH_WRITE_GOLDEN is set."""
    path = GOLDEN / name
    if "ORCH_WRITE_GOLDEN" in os.environ:
        path.write_text(text)
    return path.read_text()


def make_remote_node(index: int, facts: Facts | None = None, *, interface: str = "eth1") -> Node:
    """Return a node that is reached over SSH and has a second interface with one address on all nodes."""
    address, facts = f"10.0.0.{index}", facts or make_facts()
    interfaces = {"lo": ("127.0.0.1",), "docker0": ("172.17.0.1",), interface: (address,)}
    facts = replace(facts, hostname=f"host{index}", interfaces=interfaces, route=interface)
    ssh_command = ("ssh", "-F", "/state/ssh config", "--", f"node{index}")
    return make_node(f"node{index}", facts, address=address, via=ssh_command)


def make_inputs(cluster: Cluster, recipe: Recipe, stack: Stack, **options: Any) -> Inputs:
    """Return the inputs of a plan for hosts."""
    return Inputs(recipe=recipe, stack=stack, cluster=cluster, **options)


def make_store_step(source: Path, files: Iterable[str], store: Path, run_dir: Path) -> StoreFolder:
    """Return the step that puts a folder into a store of this machine and copies it for a run."""
    return StoreFolder(
        nodes=(RunNode(node="node0"),),
        source=str(source),
        files=tuple(files),
        path=str(store / content_store.hash_of(source)),
        node_program=(sys.executable, str(TRAIN / "node.py")),
        run_dir=str(run_dir),
        copy=str(run_dir / "project"),
    )


def known_nodes(nodes: tuple[Node, ...], ppn: int = 1) -> RunNodes:
    """Return nodes whose stack and cores are known."""
    return RunNodes(count=len(nodes), ppn=ppn, gpus_by_node={}, nodes=Choice(nodes), with_stack=nodes)


ONE_NODE = (make_node(),)
TWO_NODES = (make_remote_node(0), make_remote_node(1))
