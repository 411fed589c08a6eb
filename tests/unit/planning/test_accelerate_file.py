from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.load.files import read_table
from orchestrator.planning import accelerate_options as accelerate_file
from orchestrator.planning import launchers
from orchestrator.planning.resolve import Inputs
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_node, make_spec
from tests.support.plans import QA_REQUEST, REMOTE_SITE, TWO_NODES, USER_SCRIPT, make_inputs

FILE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_CPU",
    "downcast_bf16": "no",
    "machine_rank": 1,
    "main_process_ip": "192.0.2.9",
    "main_process_port": 29500,
    "main_training_function": "train",
    "mixed_precision": "bf16",
    "mpirun_config": {"mpirun_ccl": "1", "mpirun_hostfile": "/home/me/hostfile"},
    "num_machines": 2,
    "num_processes": 4,
    "use_cpu": True,
}
NAMES = read_table(Path(load.__file__).with_name("accelerate_config.toml"))
parse_options = partial(accelerate_file.parse_options, names=NAMES)


def test_options_are_read_from_an_accelerate_file() -> None:
    options = parse_options(FILE, "f.yaml")
    assert (options.nodes, options.ppn, options.precision, options.port) == (2, 2, "bf16", 29500)
    assert parse_options({**FILE, "num_processes": 3}, "f").ppn is None
    assert parse_options({"use_cpu": True}, "f").precision == "fp32"
    assert parse_options({"distributed_type": False, "use_cpu": True, "num_processes": 1}, "f").ppn == 1


def test_file_that_cannot_be_used_is_refused_with_what_it_is() -> None:
    for values, problem in (
        ({**FILE, "distributed_type": "FSDP"}, r"f\.yaml"),
        ({**FILE, "mixed_precision": "fp16"}, r"f\.yaml"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {}}, "distributed_type is DEEPSPEED"),
        ({"train_batch_size": 8, "zero_optimization": {"stage": 2}}, "train_batch_size: accelerate has no such key"),
        ({"distributed_type": "MULTI_CPU", "num_proceses": 4}, "num_proceses: accelerate has no such key"),
    ):
        with pytest.raises(PlanError, match=problem):
            parse_options(values, "f.yaml")
    for values, problem in (
        ({"distributed_type": False, "use_cpu": False}, "its use_cpu is false"),
        ({"distributed_type": "MULTI_GPU", "num_machines": 2}, "its distributed_type is MULTI_GPU"),
    ):
        options = parse_options(values, "f.yaml")
        with pytest.raises(PlanError, match=rf"f\.yaml is for GPUs, but .*: {problem}"):
            accelerate_file.check_device(options, make_spec(TWO_NODES))


def with_file(stack: Stack) -> Inputs:
    options = parse_options(FILE, "f.yaml")
    return make_inputs(make_cluster(*TWO_NODES), USER_SCRIPT, stack, accelerate=options)


def test_used_and_contradicted_keys_are_reported(test_stack: Stack) -> None:
    request = replace(QA_REQUEST, launcher="accelerate", nodes=2, ppn=1, precision="bf16")
    plan = plan_train(request, with_file(test_stack), REMOTE_SITE)
    decisions = [decision for decision in plan.decisions if decision.topic == "accelerate config"]
    values = [decision.value.removeprefix("CONTRADICTED: ").split()[0] for decision in decisions[1:]]
    assert values == ["machine_rank", "main_process_ip", "mpirun_config", "num_processes"]
    assert decisions[4].reason == "2: ranks, from --ppn and the nodes' cores"
    for name in ("main_process_port 29500", "main_training_function train", "num_machines 2"):
        assert name in decisions[0].value
    (config,) = (s for s in plan.steps if getattr(s, "path", "").endswith("accelerate.yaml"))
    assert "main_training_function: train" in config.content
    assert "main_process_port: 29500" in config.content
    assert "mixed_precision: bf16" in config.content
    with pytest.raises(PlanError, match="--launcher mpirun does not start accelerate"):
        plan_train(replace(request, launcher=None), with_file(test_stack), REMOTE_SITE)


def test_old_versions_get_the_keys_that_they_read() -> None:
    spec = make_spec(TWO_NODES, ppn=2)
    for text, expected in (("0.34.2", True), ("1.7.0", True), ("1.15.0", False)):
        version = launchers.Version(text)
        config = launchers.accelerate_config(spec, version, starts_mpirun=True)
        assert ("ipex_config" in config) == expected
        assert ("mpirun_ccl" in dict(config["mpirun_config"])) == expected  # type: ignore[call-overload]


def test_missing_accelerate_is_refused() -> None:
    facts = replace(make_node().facts, packages={})
    with pytest.raises(PlanError, match="node0 has no accelerate"):
        launchers.accelerate_version(make_spec((make_node(facts=facts),)))
