"""Plans of runs on Slurm, and their scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import load
from orchestrator.model.facts import Facts
from orchestrator.model.recipe import Setting
from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.request import RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs
from orchestrator.targets.batch.inputs import batch_settings, plan_of_array
from orchestrator.targets.batch.plan import job_nodes, plan_job, with_size
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.slurm import SLURM
from tests.conftest import make_facts

SITE = RunPaths(
    run_id="20260102-030405-bert-qa-abcd",
    run_dir="/shared/alice/runs/20260102-030405-bert-qa-abcd",
    train="/shared/orch/train",
    store="/shared/alice/runs/.orch/store",
    train_here=str(load.recipe("bert-qa").script).partition("/recipes/")[0],
    started_by="alice@login1",
    created=1_767_323_045.0,
)
IMAGE = {"image": "/shared/torch.sif", "image_options": ("mounts=/data:/data:ro", "arguments=--nv")}
CASES = {
    "srun": ({"nodes": 4, "ppn": 4}, ("partition=cpu", "account=physics", "time=2:00:00")),
    "mpirun": ({"nodes": 2, "ppn": 2, "launcher": "mpirun"}, ("cpus-per-task=8", "mem=32G")),
    "torchrun": (
        {"nodes": 2, "launcher": "torchrun", "max_restarts": 1, "spare_nodes": 1},
        ("constraint=avx512&ib", "comment=two words; it's $(touch PWNED)"),
    ),
    "accelerate": ({"nodes": 2, "launcher": "accelerate"}, ("exclusive", "requeue")),
    "array": ({}, ("learning_rate=1e-5,3e-5",)),
    "login": ({"nodes": 2}, ("login=alice@login1.site", "time=30")),
    "container": ({"nodes": 2, "launcher": "mpirun"}, ("login=login1",)),
}


def slurm_settings(*arguments: Any, **options: Any) -> BatchSettings:
    """Return what batch_settings returns for Slurm."""
    return batch_settings(SLURM, *arguments, **options)


def make_settings(**fields: Any) -> BatchSettings:
    """Return settings for Slurm with these fields."""
    return BatchSettings(**{"system": SLURM, "launcher": {"pmi": "auto"}, **fields})


def make_inputs() -> Inputs:
    """Return the recipe bert-qa and its stack."""
    recipe, stack = load.recipe("bert-qa"), load.stack("current")
    # Only the script's parser knows these settings of arrays.
    parsed = dict.fromkeys(("learning_rate", "seed", "max_seq_length"), Setting())
    recipe = replace(recipe, declared={**recipe.declared, **parsed})
    return Inputs(recipe=recipe, stack=stack)


def make_host_facts() -> Facts:
    """Return the facts of a login host that has the stack of make_inputs()."""
    return replace(make_facts(), packages={**load.stack("current").requirements, "torch": "2.13.0+cpu"})


def make_request(fields: dict[str, object] | None = None) -> TrainRequest:
    """Return a request to train bert-qa on gloo."""
    return TrainRequest(recipe="bert-qa", on="slurm", backend="gloo", **(fields or {}))  # type: ignore[arg-type]


def make_plan(fields: dict[str, object] | None = None, settings: BatchSettings | None = None) -> Plan:
    """Return the plan of a request with these fields."""
    return plan_request(make_request(fields), settings)


def plan_request(
    request: TrainRequest,
    settings: BatchSettings | None = None,
    *,
    run_paths: RunPaths = SITE,
    loaded: Inputs | None = None,
    facts: Facts | None = None,
    planner: Callable[..., Any] = plan_job,
) -> Any:
    """Return what a function such as plan_job plans for a request, on nodes that have its stack."""
    batch = with_size(settings or make_settings())
    batch.check()
    loaded = loaded or make_inputs()
    python = "/shared/orch/stacks/current/bin/python"
    nodes = job_nodes(request, loaded, batch, facts or make_host_facts(), python)
    return planner(request, loaded, batch, nodes, run_paths)


def submit_step(plan: Plan) -> SubmitScript:
    """Return the only step of a plan, which submits its script."""
    (step,) = plan.steps
    assert isinstance(step, SubmitScript)
    return step


def make_array(*axes: str, sample: int | None = None, **fields: object) -> Plan:
    """Return the plan of an array of runs on two nodes."""
    request = make_request({"nodes": 2, "array": axes, "array_sample": sample, **fields})
    return plan_request(request, planner=plan_of_array)


def script_of(case: str) -> str:
    """Return the script of one of CASES."""
    fields, options = CASES[case]
    if case == "array":
        plan = make_array(*options)
    else:
        plan = make_plan(fields, slurm_settings(None, options, {}, **(IMAGE if case == "container" else {})))
    return plan.describe().replace(SITE.train_here, "/here/train")
