"""Every target uses or refuses each field of a request; it ignores none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest

from orchestrator.cli.main import make_app
from orchestrator.cli.options import PANELS
from orchestrator.errors import OrchError, PlanError
from orchestrator.model.decision import Decision
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest, flag
from orchestrator.planning.run_files import master_port
from orchestrator.targets import registry
from orchestrator.targets.batch.options import PBS, SLURM
from orchestrator.targets.kubernetes.options import KubernetesOptions
from tests.support.files import write_files
from tests.support.node_responses import make_inventory, make_node_record

FIELDS = tuple(field.name for field in fields(TrainRequest))
IMAGE = "registry.example/orch"
PODS = KubernetesOptions(k8s=("memory=9Gi",))
BASE = {
    "ssh": TrainRequest(recipe="bert-qa", inventory="./lab.yml", nodes=2),
    "kubernetes": TrainRequest(recipe="bert-qa", on="k8s", nodes=2, image=IMAGE),
    "pbs": TrainRequest(recipe="bert-qa", on="pbs", nodes=2),
    "slurm": TrainRequest(recipe="bert-qa", on="slurm", nodes=2),
}
# A value other than the field's default, and the other fields that it needs to take effect.
Case = tuple[Any, Mapping[str, Any]]
CASES: Mapping[str, Case] = {
    "recipe": ("glue-mrpc", {}),
    "module": (True, {}),
    "script_args": (("--x",), {}),
    "preset": ("full", {}),
    "settings": (("seed=7",), {}),
    "array": (("seed=1,2",), {}),
    "array_sample": (1, {"array": ("seed=1,2",)}),
    "project": ("none", {"recipe": "own.py"}),
    "project_limit": (0, {"recipe": "own.py"}),
    "requirements": ("missing.txt", {}),
    "extra": (("train",), {}),
    "packages": (("einops ==",), {}),
    "defaults": ((Decision("defaults", "--ppn 2", "a file"),), {}),
    "env": (("A=1",), {}),
    "env_file": (PurePath("variables.env"), {}),
    "recipe_path": ((PurePath("recipes"),), {"recipe": "my-own"}),
    "stack": ("intel-2.8", {}),
    "python": ("no/such/python", {}),
    "on": ("nosuch", {}),
    "inventory": ("nosuch", {}),
    "nodes": (1, {}),
    "exclude": ("host1", {}),
    "wait_for_cores": (True, {}),
    "ppn": (2, {}),
    "launcher": ("torchrun", {}),
    "mpi": ("mpich", {}),
    "accelerate_config": ("accelerate.yaml", {"launcher": "accelerate"}),
    "backend": ("gloo", {}),
    "ccl_workers": (1, {}),
    "fabric": ("psm3", {}),
    "precision": ("fp32", {}),
    "allow_slow_bf16": (True, {"precision": "bf16"}),
    "ipex": (True, {}),
    "kernels": ("torch", {}),
    "stall_timeout": (1.0, {}),
    "max_restarts": (1, {}),
    "spare_nodes": (1, {"max_restarts": 1}),
    "min_nodes": (1, {"max_restarts": 1}),
    "stop_on_nan": (True, {}),
    "name": ("first", {}),
    "image": ("orch:current", {}),
    "image_options": (("shm=4g",), {"image": "orch:current"}),
    "options": ((PODS,), {}),
}
CASES_OF_TARGETS: Mapping[tuple[str, str], Case] = {
    ("kubernetes", "launcher"): ("pytorchjob", {}),
    ("pbs", "options"): ((PBS.options(pbs=("queue=long",)),), {}),
    ("slurm", "mpi"): ("mpich", {"launcher": "mpirun"}),
    ("ssh", "allow_slow_bf16"): (True, {"nodes": "slow", "precision": "bf16"}),
    ("slurm", "options"): ((SLURM.options(slurm=("partition=cpu",)),), {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flags")


@pytest.fixture(autouse=True)
def lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create four hosts and a user recipe."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delenv("ORCH_K8S_FILE", raising=False)
    if (folder / "lab.yml").exists():
        return
    hosts = {f"host{index}": make_node_record(index) for index in range(3)}
    make_inventory(folder / "lab.yml", {**hosts, "slow": make_node_record(0, ("avx2",))})
    files = {
        "accelerate.yaml": "distributed_type: MULTI_CPU\nmixed_precision: 'no'\n",
        "variables.env": "A=1\n",
        "own.py": "import torch\n",
        "recipes/my_own/recipe.toml": 'summary = "x"\nscript = "train.py"\nresumes = true\nprecisions = {fp32 = []}\n',
        "recipes/my_own/train.py": "import beside\n",
        "recipes/my_own/beside.py": "",
    }
    write_files(folder, files)


@cache
def outcome(request: TrainRequest) -> str:
    """Return the plan without the parts that differ between runs, or the error."""
    try:
        plan = train.plan(request)
    except OrchError as error:
        return f"{error.message} {error.hint}"
    text = plan.describe().replace(str(master_port(plan.run.run_id)), "PORT")
    text = text.replace(str(plan.run.created), "CREATED").replace(plan.run.run_id, "RUN")
    return re.sub(r"orch-\d{8}-\d{6}[-a-z0-9]*|\d{5}(?= --)", "JOB", text)


def test_same_request_has_the_same_plan() -> None:
    for request in BASE.values():
        assert "ranks: " in outcome(request)
        assert outcome(request) == outcome.__wrapped__(request)


@pytest.mark.parametrize("name", BASE, ids=str)
@pytest.mark.parametrize("field", sorted({*FIELDS} - {"runs_dir"}), ids=str)  # the folder of records on this machine
def test_field_changes_the_plan_or_is_refused(name: str, field: str) -> None:
    target = registry.find_target(BASE[name].on)
    value, context = CASES_OF_TARGETS.get((name, field), CASES[field])
    accepted = {key: context_value for key, context_value in context.items() if key not in target.refuses}
    before = replace(BASE[name], **accepted)
    request = replace(before, **{field: value})
    if field in target.refuses:
        with pytest.raises(PlanError, match=re.escape(flag(field))) as exc_info:
            train.plan(request)
        assert target.refuses[field].hint in exc_info.value.hint
    else:
        assert outcome(request) != outcome(before)


def test_all_refused_fields_are_reported_at_once() -> None:
    for request in BASE.values():
        assert set(registry.find_target(request.on).refuses) <= set(FIELDS)
    request = replace(BASE["kubernetes"], inventory="nosuch", accelerate_config="/nonexistent", wait_for_cores=True)
    with pytest.raises(PlanError) as exc_info:
        train.plan(request)
    for option in ("--inventory is for nodes", "--accelerate-config", "--wait-for-cores"):
        assert option in exc_info.value.message


def test_every_field_is_an_option_of_the_command_line() -> None:
    """Except what follows from the targets, the environment, files, or from several options."""
    option_names = [name for options in PANELS.values() for name in options]
    assert sorted([*option_names, "defaults", "on", "options", "runs_dir"]) == sorted(FIELDS)
    assert all(field.default is not MISSING for field in fields(TrainRequest)[1:])


def test_a_project_is_sent_to_nodes_with_an_own_script() -> None:
    for options, is_sent in (
        ({"recipe": "own.py"}, True),  # script
        ({"recipe": "own.py", "inventory": "local", "nodes": None}, False),  # this machine
        ({"recipe": "own", "module": True, "image": "orch:current"}, False),
        ({"recipe": "own", "module": True, "image": "orch:current", "project": "."}, True),  # named
        ({}, False),  # recipe
    ):
        assert ("# project: " in train.plan(replace(BASE["ssh"], **options)).describe()) is is_sent


def test_impossible_combination_is_refused() -> None:
    limits = (
        ({"min_nodes": 3, "max_restarts": 1}, "--min-nodes 3, but the run has 2 nodes"),
        ({"min_nodes": 1}, "--min-nodes without --max-restarts has no effect"),
        ({"max_restarts": -1}, "--max-restarts -1: expected 0 or more"),
        ({"stall_timeout": -0.5}, "--stall-timeout -0.5: expected 0 or more"),
        ({"stall_timeout": float("nan")}, "--stall-timeout nan: expected 0 or more"),
    )
    for target, values, message in (
        *((target, values, message) for target in BASE for values, message in limits),
        ("kubernetes", {"min_nodes": 1, "max_restarts": 1, "launcher": "trainjob"}, "only a PyTorchJob"),
        ("kubernetes", {"ppn": 0}, "--ppn 0"),  # no ranks
        ("ssh", {"launcher": "torchrun", "mpi": "mpich"}, "--mpi mpich: --launcher torchrun starts the ranks"),
    ):
        with pytest.raises(PlanError, match=re.escape(message)):
            train.plan(replace(BASE[target], **values))


def test_slurm_settings_are_refused_when_nodes_are_provisioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_SLURM_FILE", "/nonexistent")  # The environment is ignored here.
    with pytest.raises(PlanError) as exc_info:
        make_app()(["provision", "nosuch", "--slurm", "root=/shared"], standalone_mode=False)
    assert exc_info.value.message == "--slurm is for --on slurm."
