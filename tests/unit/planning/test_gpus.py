"""Plans for nodes with GPUs, from recorded facts: refused requests, the cores of ranks, and their settings."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.agent.containers import entry_command
from orch_node.protocol import container
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import RankRequest
from orch_node.protocol.fabrics import Device

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node, lay_out
from orchestrator.model.facts import Gpu
from orchestrator.model.process_group import BACKENDS, find_backend
from orchestrator.planning import launchers
from orchestrator.planning.containers import Docker
from orchestrator.planning.plan import Plan, PutFile
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts, make_node, make_spec
from tests.support.plans import GOLDEN, LOCAL_SITE, QA_REQUEST, REMOTE_SITE, USER_SCRIPT, make_inputs, make_remote_node

H100 = Gpu(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=85520809984, driver="550.54.15", numa=0)
# What the entrypoint of an image that starts its ranks reads.
VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "RANK", "WORLD_SIZE")
CUDA_TORCH = {"torch": "2.11.0+cu130", "accelerate": "1.15.0"}


def make_gpu_node(node: Node | None = None, *, gpus: int = 8, packages: dict[str, str] | None = None) -> Node:
    """Return a node with two NUMA nodes of 8 cores, and half of its GPUs at each."""
    devices = tuple(replace(H100, index=index, numa=index * 2 // gpus) for index in range(gpus))
    facts = replace(make_facts(numa=2, cores=8), gpus=devices, packages=packages or CUDA_TORCH)
    node = node or make_node()
    network = {"hostname": node.facts.hostname, "interfaces": node.facts.interfaces, "route": node.facts.route}
    return replace(node, facts=replace(facts, **network))


GPU_NODE = make_gpu_node()
TWO_GPU_NODES = (make_gpu_node(make_remote_node(0)), make_gpu_node(make_remote_node(1)))


def decide(stack: Stack, *nodes: Node, **fields: Any) -> Plan:
    """Plan a script on nodes; the stack of the tests requires only torch."""
    stack = replace(stack, requirements={"torch": "2.11.0"})
    request = replace(QA_REQUEST, **{"backend": "nccl", **fields})
    return plan_train(request, make_inputs(make_cluster(*nodes), USER_SCRIPT, stack), LOCAL_SITE)


def decision(plan: Plan, topic: str) -> tuple[str, str]:
    (result,) = [decision for decision in plan.decisions if decision.topic == topic]
    return result.value, result.reason


def content(plan: Plan, name: str) -> str:
    return next(step.content for step in plan.steps if isinstance(step, PutFile) and step.path.endswith(name))


def test_each_gpu_has_a_rank_on_cores_near_it(test_stack: Stack) -> None:
    plan = decide(test_stack, GPU_NODE)
    assert decision(plan, "ranks") == ("8", "one for each GPU")
    assert decision(plan, "gpus") == (
        "8 x NVIDIA H100 80GB HBM3 (80 GiB) on node0",
        "driver 550.54.15; each rank runs on cores near its GPU",
    )
    ranks = json.loads(content(plan, "layout.json"))["ranks"]
    assert [rank["gpu"] for rank in ranks] == list(range(8))
    assert [rank["cpus"] for rank in ranks] == [[first, first + 1] for first in range(0, 16, 2)]


def test_cores_are_those_of_the_numa_node_of_the_gpu() -> None:
    for numa, ppn, cpus in (
        ((1, 1), None, [(8, 9, 10, 11), (12, 13, 14, 15)]),  # both at the second NUMA node
        ((1, 0), 1, [tuple(range(8, 16))]),  # one rank, at the first GPU
        ((None, 1), None, [tuple(range(8)), tuple(range(8, 16))]),  # one is unknown
        ((0, 7), None, [tuple(range(8)), tuple(range(8, 16))]),  # without cores that orch may use
        ((1,), 2, [(8, 9, 10, 11), (12, 13, 14, 15)]),  # two ranks share one
    ):
        gpus = tuple(replace(H100, index=index, numa=number) for index, number in enumerate(numa))
        node = make_node(facts=replace(GPU_NODE.facts, gpus=gpus))
        assert [rank_place.cpus for rank_place in lay_out((node,), ppn, on_gpus=True).rank_places] == cpus


def test_more_ranks_than_gpus_are_refused_with_both_numbers(test_stack: Stack) -> None:
    with pytest.raises(PlanError, match=r"--ppn 9, but node0 has 8 GPUs") as exc_info:
        decide(test_stack, GPU_NODE, ppn=9)
    assert exc_info.value.hint.startswith("Use --ppn 8")
    node = make_gpu_node(gpus=1)
    with pytest.raises(PlanError, match=r"--ppn 2, but node0 has 1 GPU,"):
        decide(test_stack, node, ppn=2)
    assert decision(decide(test_stack, node, ppn=2, env=("NCCL_HOSTID=shared",)), "ranks")[0] == "2"
    assert decision(decide(test_stack, node, ppn=2, backend="gloo"), "ranks")[0] == "2"


def test_missing_gpu_and_torch_for_cpus_are_refused_in_the_plan(test_stack: Stack) -> None:
    with pytest.raises(PlanError, match=r"--backend nccl .*: node0 has no GPU\.") as exc_info:
        decide(test_stack, make_node(facts=replace(make_facts(), packages=CUDA_TORCH)))
    assert exc_info.value.hint == "Use --backend ccl or gloo on CPUs."
    with pytest.raises(PlanError, match=r"torch 2\.11\.0\+cpu of node0 is built for CPUs") as exc_info:
        decide(test_stack, make_gpu_node(packages={"torch": "2.11.0+cpu"}))
    assert "--venv FOLDER --backend nccl" in exc_info.value.hint


def test_backend_for_several_devices_is_that_of_the_gpus() -> None:
    for name in ("cpu:gloo,cuda:nccl", "cuda:nccl"):
        backend = find_backend(name, BACKENDS)
        assert (backend.name, backend.gpu) == (name, True)
    assert [find_backend(name, BACKENDS) for name in ("cpu:ccl,cuda:nccl", "cpu:gloo", "cuda:ncl", "ncl")] == [None] * 4


def test_accelerate_follows_the_device(test_stack: Stack) -> None:
    version = launchers.Version("1.15.0")
    spec = replace(make_spec((GPU_NODE,), ppn=8), on_gpus=True)
    config = launchers.accelerate_config(spec, version, starts_mpirun=True)
    assert (config["distributed_type"], config["use_cpu"], config["num_processes"]) == ("MULTI_GPU", False, 8)
    assert config["main_process_port"] != spec.port, "torchrun's own store must not take the port of the ranks"
    of_rank = launchers.accelerate_config(spec, version, starts_mpirun=False)
    assert (of_rank["distributed_type"], of_rank["use_cpu"], of_rank["num_processes"]) == ("NO", False, 1)
    for backend, packages, use_cpu in (("gloo", None, "False"), ("gloo", "2.11.0+cpu", "True")):
        torch = {**CUDA_TORCH, "torch": packages} if packages else None
        plan = decide(test_stack, make_gpu_node(packages=torch), launcher="accelerate", backend=backend, ppn=2)
        assert json.loads(content(plan, "env.json"))["ACCELERATE_USE_CPU"] == use_cpu
        assert f"use_cpu: {use_cpu.lower()}" in content(plan, "accelerate.yaml")
    with pytest.raises(PlanError, match="several nodes by mpirun"):
        decide(test_stack, *TWO_GPU_NODES, launcher="accelerate")


def test_command_of_docker_on_gpus_is_golden(test_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the command of an image that starts BERT pretraining on two nodes with eight GPUs, one option per line."""
    monkeypatch.setattr(os, "getgroups", lambda: [44])
    device = Device("mlx5_0", "mlx5_core", "InfiniBand", "", speed=400000, numa=0, active=True)
    nodes = tuple(
        replace(node, facts=replace(node.facts, devices=(device,), packages=make_facts().packages))
        for node in TWO_GPU_NODES
    )
    recipe = load.recipe("bert-pretrain")
    image = Docker(image="team/bert:1", start="node", mounts=("/data/bert:/workspace/data",))
    inputs = make_inputs(make_cluster(*nodes), recipe, test_stack, docker=image)
    plan = plan_train(replace(QA_REQUEST, recipe="bert-pretrain"), inputs, replace(REMOTE_SITE, root="/opt/orch"))
    assert decision(plan, "ranks") == ("one for each GPU", "NPROC_PER_NODE, for the image")
    spec = container.parse(content(plan, "container.json"))
    assert spec.processes == {"node0": 8, "node1": 8}
    (placement, _) = layouts.parse(content(plan, "layout.json")).ranks
    launcher = shlex.split(plan.describe().splitlines()[-1])
    script = launcher[len(launcher) - launcher[::-1].index("--") :]
    order = RankRequest(placement, {}, tuple(script), log="")
    command = entry_command(Path(plan.run.run_dir), spec, order, VARIABLES, entrypoint=None)
    command[command.index("--user") + 1] = "1000:1000"
    lines = shlex.join(command).replace(" --", " \\\n  --").replace(f" {image.image} ", f" \\\n  {image.image} ")
    assert f"{lines}\n" == (GOLDEN / "docker-gpus.sh").read_text()
