"""Check what is decided about a job, and which requests are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Gpu
from orchestrator.model.hosts import NodeCount
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest
from orchestrator.targets.batch.decisions import with_size
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.plan import plan_job
from orchestrator.targets.batch.slurm import RESERVED_OPTIONS, SLURM
from tests.support.environments import make_environment
from tests.support.slurm_plans import SITE, make_inputs, make_plan, make_request, make_settings, slurm_settings


@pytest.mark.parametrize("name", RESERVED_OPTIONS)
def test_options_that_orch_sets_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=f"--slurm {name}: orch sets this option itself"):
        make_plan({}, make_settings(options={name: "1"}))


@pytest.mark.parametrize(
    ("fields", "settings", "problem"),
    [
        ({"nodes": NodeCount(0)}, {}, "needs a number of nodes"),
        ({"ppn": 0}, {}, "--ppn 0"),
        ({"launcher": "trainjob"}, {}, "--launcher trainjob does not run on Slurm"),
        ({"mpi": "intel"}, {}, "--launcher srun starts the ranks without mpirun"),
        ({"mpi": "openmpi", "launcher": "mpirun"}, {}, "mpirun must be that of intel"),
        ({"spare_nodes": 1}, {}, "--spare-nodes without --max-restarts"),
        ({}, {"launcher": {"pmi": "pmi9"}}, "pmi=pmi9"),
        ({}, {"root": "relative"}, "root=relative: expected an absolute path"),
        ({}, {"options": {"comment": "two\nlines"}}, "cannot be printed"),
        ({}, {"options": {"x y": "1"}}, "not an option of sbatch"),
        ({}, {"options": {"cpus-per-task": "many"}}, "cpus-per-task=many: expected a number"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, object], settings: dict[str, object], problem: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(fields, make_settings(**settings))
    assert problem in caught.value.message


@pytest.mark.parametrize("login", ["-oProxyCommand=x", "a b", "host;id", "u@-x", "h/x", "a@b@c"])
def test_login_node_must_be_a_host_name(login: str) -> None:
    with pytest.raises(PlanError, match="not a host name"):
        make_plan({}, make_settings(login=login))


def test_python_is_an_option_of_all_targets() -> None:
    with pytest.raises(PlanError, match="--slurm python") as exc_info:
        slurm_settings(None, ["python=/p"], {}).check()
    assert exc_info.value.hint == "Use --python PATH."


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ({"gpus-per-node": "8"}, 8),
        ({"gpus-per-node": "a100:2,h100:2"}, 4),
        ({"gpus": "h100:16"}, 8),
        ({"gres": "license:9,gpu:h100:4(S:0-1)"}, 4),
        ({"gres": "gres/gpu"}, 1),
        ({"gres": "license:9"}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_gpus_of_a_node_are_those_that_the_job_requests(options: dict[str, str], gpus: int) -> None:
    assert SLURM.requested_gpus(options, 2) == gpus
    assert PBS.requested_gpus({"select": f"2:ncpus=64:ngpus={gpus}:mem=1gb"}, 2) == gpus
    assert PBS.requested_gpus({"select": "ncpus=4:myngpus=2"}, 1) == 0


def test_nccl_is_planned_from_the_request_and_not_from_the_login_host() -> None:
    inputs = make_inputs(make_settings(options={"gpus-per-node": "8"}))
    facts = replace(inputs.facts, packages={**inputs.facts.packages, "torch": "2.13.0+cu130"})
    request = replace(make_request({"nodes": NodeCount(2)}), backend="nccl")
    plan = plan_job(request, replace(inputs, facts=facts), SITE)
    decisions = {decision.topic: decision for decision in plan.decisions}
    assert decisions["ranks"].describe().startswith("ranks: 16 (8 on each node, one for each GPU that the job requests")
    assert decisions["gpus"].value == "8 x GPU on each of node-0, node-1"
    refused: dict[str, tuple[TrainRequest, Any]] = {
        "the job requests no GPUs": (request, replace(make_inputs(), facts=replace(facts, gpus=(Gpu(index=0),)))),
        "--ppn 9, but each node has 8 GPUs": (replace(request, ppn=9), replace(inputs, facts=facts)),
        "is built for CPUs": (request, inputs),
    }
    for message, (changed, other_inputs) in refused.items():
        with pytest.raises(PlanError, match=message):
            plan_job(changed, other_inputs, SITE)


def test_ranks_run_on_the_users_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("print(1)\n")
    make_environment(tmp_path / "empty")
    make_environment(tmp_path / "environment", without=["oneccl_bind"])
    request = TrainRequest(recipe="own.py", on="slurm", backend="gloo", python="environment/bin/python")
    plan = train.plan(request)
    assert plan.run.python == f"{tmp_path}/environment/bin/python"
    assert [decision.value for decision in plan.decisions if decision.topic == "python"] == [plan.run.python]
    refused: dict[str, dict[str, Any]] = {
        "missing: torch.": {"python": "empty/bin/python"},
        "missing: oneccl-bind-pt.": {"backend": "ccl"},
    }
    for message, changes in refused.items():
        with pytest.raises(PlanError, match=message) as exc_info:
            train.plan(replace(request, **changes))
        assert f"{tmp_path}/" in exc_info.value.hint


@pytest.mark.parametrize(
    ("options", "memory"),
    [
        ((), "0"),
        (("exclusive",), "0"),
        (("exclusive", "mem=4G"), "4G"),
        (("exclusive", "mem-per-cpu=1G"), None),
        (("cpus-per-task=2",), None),
        (("exclusive=user",), None),
    ],
    ids=["default", "exclusive", "mem", "mem-per-cpu", "shared", "exclusive-user"],
)
def test_whole_nodes_come_with_all_of_their_memory(options: tuple[str, ...], memory: str | None) -> None:
    assert with_size(slurm_settings(None, options, {})).options.get("mem") == memory


def test_hint_for_a_missing_mpi_names_the_shared_folder_and_no_inventory() -> None:
    inputs = make_inputs()
    bare = replace(inputs, facts=replace(inputs.facts, mpi={}))
    request = make_request({"launcher": "mpirun", "mpi": "mpich"})
    with pytest.raises(PlanError, match="has no MPICH") as caught:
        plan_job(request, bare, SITE)
    assert "pip install --prefix /shared/orch/stacks/current/mpi/mpich mpich" in caught.value.hint
    assert "inventory" not in caught.value.hint
