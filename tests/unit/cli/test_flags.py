"""Every target uses or rejects each field of a request; it ignores none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest

from orchestrator import load
from orchestrator.cli.main import app
from orchestrator.cli.request import PANELS
from orchestrator.errors import OrchError, PlanError
from orchestrator.operations import train
from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import Refusal, check_refused, flag
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.run_files import master_port
from orchestrator.runs import store
from orchestrator.state import State
from orchestrator.targets import registry
from orchestrator.targets.kubernetes.options import KubeOptions
from orchestrator.targets.slurm.options import SlurmOptions
from tests.support.recorded import make_outcome

FIELDS = tuple(field.name for field in fields(TrainRequest))
IMAGE = KubeOptions(k8s=("image=registry.example/orch",))
BASE = {
    "ssh": TrainRequest(recipe="bert-qa", inventory="./lab.yml", nodes="2"),
    "kubernetes": TrainRequest(recipe="bert-qa", on="k8s", nodes="2", options=(IMAGE,)),
    "slurm": TrainRequest(recipe="bert-qa", on="slurm", nodes="2"),
}
# A value other than the field's default, and the other fields that it needs to take effect.
Case = tuple[Any, Mapping[str, Any]]
CASES: Mapping[str, Case] = {
    "recipe": ("glue-mrpc", {}),
    "module": (True, {}),
    "script_args": (("--x",), {}),
    "preset": ("full", {}),
    "settings": (("seed=7",), {}),
    "recipe_path": ((PurePath("recipes"),), {"recipe": "my-own"}),
    "stack": ("intel-2.8", {}),
    "on": ("nosuch", {}),
    "inventory": ("nosuch", {}),
    "nodes": ("1", {}),
    "exclude": ("host1", {}),
    "queue": (True, {}),
    "ppn": (2, {}),
    "launcher": ("torchrun", {}),
    "mpi": ("openmpi", {}),
    "accelerate_config": ("accelerate.yaml", {"launcher": "accelerate"}),
    "backend": ("gloo", {}),
    "ccl_workers": (1, {}),
    "fabric": ("psm3", {}),
    "precision": ("fp32", {}),
    "allow_slow_bf16": (True, {"nodes": "slow", "precision": "bf16"}),
    "ipex": (True, {}),
    "fresh": (True, {"runs_dir": PurePath("unfinished")}),
    "stall_timeout": (1.0, {}),
    "max_restarts": (1, {}),
    "spare_nodes": (1, {"max_restarts": 1}),
    "min_nodes": (1, {"max_restarts": 1}),
    "docker_image": ("orch:current", {}),
    "docker": (("shm=4g",), {"docker_image": "orch:current"}),
    "options": ((replace(IMAGE, k8s=(*IMAGE.k8s, "cpu=8")),), {}),
    "runs_dir": (PurePath("unfinished"), {}),
}
OTHERWISE: Mapping[tuple[str, str], Case] = {
    ("kubernetes", "launcher"): ("mpijob", {}),
    ("kubernetes", "mpi"): ("openmpi", {"launcher": "mpijob"}),
    ("kubernetes", "allow_slow_bf16"): (True, {"precision": "bf16"}),
    ("kubernetes", "inventory"): ("lab.yml", {}),
    ("slurm", "mpi"): ("mpich", {"launcher": "mpirun"}),
    ("slurm", "allow_slow_bf16"): (True, {"precision": "bf16"}),
    ("slurm", "inventory"): ("lab.yml", {}),
    ("slurm", "options"): ((SlurmOptions(slurm=("partition=cpu",)),), {}),
}


def record(index: int, flags: tuple[str, ...] = ("avx512f", "avx512_bf16")) -> dict[str, Any]:
    """Return the record that `orch provision` writes for a node."""
    address = f"10.0.0.{index + 1}"
    stack = load.stack("current")
    return {
        "hostname": f"host{index}",
        "python": "3.11.2",
        "cpu_model": "a model",
        "flags": flags,
        "cpus": [{"cpu": n, "core": n, "socket": 0, "numa": 0} for n in range(4)],
        "memory_bytes": 2**34,
        "shm_bytes": 2**30,
        "libraries": {},
        "packages": dict(stack.requirements),
        "mpi": {name: f"/venv/{name}/mpiexec" for name in ("intel", "mpich", "openmpi")},
        "interfaces": {"eth0": [address]},
        "route": "eth0",
        "address": address,
        "root": "/opt/orch",
        "fabrics": {"psm3": ""},
        "connection": {"host": address, "port": "", "user": "", "key": "", "arguments": ""},
    }


def make_inventory(path: Path, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    path.write_text("all:\n  hosts:\n" + "".join(f"    {name}:\n" for name in hosts))
    make_records(path, hosts)


def make_records(path: Path, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    for name, record_fields in hosts.items():
        record_path = State.of(path).record(name)
        record_path.parent.mkdir(parents=True, exist_ok=True)
        record_path.write_text(json.dumps(record_fields))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flags")


@pytest.fixture(autouse=True)
def ground(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create four hosts, a user recipe and an unfinished run of each target."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("ORCH_K8S_FILE", raising=False)
    if (folder / "lab.yml").exists():
        return
    hosts = {f"host{index}": record(index) for index in range(3)}
    make_inventory(folder / "lab.yml", {**hosts, "slow": record(0, ("avx2",))})
    (folder / "accelerate.yaml").write_text("distributed_type: MULTI_CPU\nmixed_precision: 'no'\n")
    recipe_folder = folder / "recipes" / "my_own"
    recipe_folder.mkdir(parents=True)
    (recipe_folder / "recipe.toml").write_text(
        'summary = "mine"\nscript = "train.py"\nresumes = true\n[precisions]\nfp32 = []\n[arguments]\n'
    )
    (recipe_folder / "train.py").write_text("import beside\n")
    (recipe_folder / "beside.py").write_text("")
    for request in BASE.values():
        leave_unfinished(train.plan(request), folder / "unfinished")


def leave_unfinished(plan: Plan, base: Path) -> None:
    store.create(plan, base / plan.run.run_id)
    (base / plan.run.run_id / "outcome.json").write_text(json.dumps(make_outcome("stopped")))


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


@pytest.mark.parametrize("name", BASE)
def test_the_same_request_has_the_same_plan(name: str) -> None:
    assert outcome(BASE[name]) == outcome.__wrapped__(BASE[name])
    assert "ranks: " in outcome(BASE[name])


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_consumed_or_refused(name: str, field: str) -> None:
    target = registry.find_target(BASE[name].on)
    value, context = OTHERWISE.get((name, field), CASES[field])
    before = replace(
        BASE[name], **{key: context_value for key, context_value in context.items() if key not in target.refuses}
    )
    request = replace(before, **{field: value})
    if field in target.refuses:
        with pytest.raises(PlanError, match=re.escape(flag(field))) as caught:
            train.plan(request)
        assert target.refuses[field].hint in caught.value.hint
    else:
        assert outcome(request) != outcome(before)


def test_what_a_target_refuses_is_a_field() -> None:
    for name in BASE:
        assert set(registry.find_target(BASE[name].on).refuses) <= set(FIELDS)


def test_all_that_is_refused_is_told_at_once() -> None:
    request = replace(BASE["kubernetes"], inventory="nosuch", accelerate_config="/nonexistent", queue=True)
    with pytest.raises(PlanError) as caught:
        train.plan(request)
    for word in ("--inventory is for nodes", "--accelerate-config", "--queue"):
        assert word in caught.value.message


def test_options_of_another_target_are_refused() -> None:
    with pytest.raises(PlanError, match=r"--k8s is for --on k8s\. --k8s-file is for --on k8s"):
        train.plan(replace(BASE["ssh"], options=(replace(IMAGE, k8s_file=Path("x.toml")),)))
    train.plan(replace(BASE["ssh"], options=(KubeOptions(),)))


def test_what_was_not_given_is_not_refused() -> None:
    everything = {name: Refusal("is refused", "") for name in FIELDS if name != "recipe"}
    check_refused(TrainRequest(recipe="x"), everything)


def test_every_field_is_an_option_of_the_command_line() -> None:
    """Except `on` and `options`, which follow from the targets, and `runs_dir`, an option of other commands."""
    option_names = [name for options in PANELS.values() for name in options]
    assert sorted([*option_names, "on", "options", "runs_dir"]) == sorted(FIELDS)
    assert all(field.default is not MISSING for field in fields(TrainRequest)[1:])
    assert app.registered_commands


def test_a_recipe_of_ones_own_travels_whole_to_pods() -> None:
    request = replace(BASE["kubernetes"], recipe="my-own", recipe_path=(PurePath("recipes"),))
    (step,) = train.plan(request).steps
    text = step.describe()
    for file in ("train.py", "beside.py", "recipe.toml"):
        assert f"path: files/recipe/{file}" in text
    assert "- /etc/orch/files/recipe/train.py" in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mpi": "mpich", "launcher": "mpijob"}, "--mpi mpich is not available"),
        ({"mpi": "intel"}, "torchrun starts the ranks unless --launcher is given"),
        ({"mpi": "intel", "launcher": "pytorchjob"}, "torchrun starts the ranks of a PyTorchJob"),
        ({"min_nodes": 3, "max_restarts": 1}, "min_nodes = 3, but --nodes is 2"),
        ({"min_nodes": 1}, "min_nodes needs --max-restarts"),
        ({"min_nodes": 1, "max_restarts": 1, "launcher": "mpijob"}, "only a PyTorchJob"),
        ({"ppn": 0}, "--ppn 0"),
        (
            {"options": (KubeOptions(k8s=("image=x", "mpi=Intel")),), "mpi": "intel", "launcher": "mpijob"},
            "--mpi and --k8s mpi set the same value",
        ),
    ],
)
def test_what_pods_cannot_do_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        train.plan(replace(BASE["kubernetes"], **asked))


def test_torchrun_takes_no_mpi() -> None:
    with pytest.raises(PlanError, match="--mpi mpich: --launcher torchrun starts the ranks"):
        train.plan(replace(BASE["ssh"], launcher="torchrun", mpi="mpich"))


def test_what_is_for_a_shared_folder_is_not_dropped_where_nodes_are_provisioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCH_SLURM_FILE", "/nonexistent")  # The environment is ignored here.
    with pytest.raises(PlanError) as refused:
        app(["provision", "nosuch", "--slurm", "root=/shared"], standalone_mode=False)
    assert refused.value.message == "--slurm is for --on slurm."
