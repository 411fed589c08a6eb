"""Renders accelerate's configuration file for the stack's version of accelerate."""

from __future__ import annotations

import json
from collections.abc import Mapping

from packaging.version import Version

from orchestrator.errors import PlanError
from orchestrator.planning.launchers.job import Job
from orchestrator.planning.launchers.torchrun import PORT_OFFSET

NAME = "accelerate.yaml"
# accelerate accepts mpirun_config since 0.28, and since 1.13 neither mpirun_ccl nor ipex_config, which is then an
# error (config_args.py and utils/launch.py of the wheels 0.27 to 1.15).
FIRST_WITH_MPIRUN = Version("0.28")
FIRST_WITHOUT_IPEX = Version("1.13")
PRECISIONS = {"bf16": "bf16", "fp32": "no"}
# The plan decides these, whatever a user's file contains (planning/accelerate_options.py reports it).
PLANNED_KEYS = (
    "compute_environment",
    "distributed_type",
    "use_cpu",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "ipex_config",
    "mpirun_config",
)


def version_of(job: Job) -> Version:
    """Return the version of accelerate on the nodes; raise PlanError if it is missing or too old."""
    for node in job.nodes:
        if "accelerate" not in node.facts.packages:
            raise PlanError(
                f"{node.name} has no accelerate for {job.ranks[0]}.",
                hint="Use a stack that includes it (`orch stacks`), or --launcher mpirun.",
            )
    version = Version(job.nodes[0].facts.packages["accelerate"])
    if version < FIRST_WITH_MPIRUN:
        raise PlanError(
            f"accelerate {version} cannot start mpirun; {FIRST_WITH_MPIRUN} is the first version that can.",
            hint="Use --launcher mpirun-accelerate, where mpirun starts accelerate.",
        )
    return version


def config(job: Job, version: Version, *, starts_mpirun: bool) -> dict[str, object]:
    """Return the configuration: orch's values, and the other values of the user's file.

    On GPUs accelerate starts torchrun, not mpirun. If mpirun starts it for each rank, it starts a single process.
    """
    ranks = job.layout.world_size if starts_mpirun or not job.on_gpus else 1
    device = "GPU" if job.on_gpus else "CPU"
    old = version < FIRST_WITHOUT_IPEX
    mpirun: dict[str, object] = {"mpirun_hostfile": job.hostfile}
    if old:
        mpirun["mpirun_ccl"] = str(max(1, len(job.layout.rank_places[0].worker_cpus)))
    planned: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": f"MULTI_{device}" if ranks > 1 else "NO",
        "use_cpu": not job.on_gpus,
        "mixed_precision": mixed_precision(job),
        "num_machines": 1 if job.on_gpus else len(job.nodes),
        "num_processes": ranks,
        "machine_rank": 0,
        "main_process_ip": job.address,
        "main_process_port": job.port + (PORT_OFFSET if job.on_gpus else 0),
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": False,
        "debug": False,
        **({"ipex_config": {"ipex": job.ipex, "use_xpu": False}} if old else {}),
        **({"mpirun_config": mpirun} if starts_mpirun and ranks > 1 and not job.on_gpus else {}),
    }
    user_values = {name: value for name, value in job.accelerate.items() if name not in PLANNED_KEYS}
    return {**planned, **user_values}


def mixed_precision(job: Job) -> str:
    return PRECISIONS.get(job.precision, "no")


def environment(job: Job) -> dict[str, str]:
    """Return the variables that `accelerate launch` sets for a script's Accelerator().

    They are set on every node because mpirun may not pass them on.
    """
    return {"ACCELERATE_USE_CPU": str(not job.on_gpus), "ACCELERATE_MIXED_PRECISION": mixed_precision(job)}


def as_yaml(value: Mapping[str, object], indent: str = "") -> str:
    """Return the values as YAML; its strings are in JSON's quotes, which YAML allows."""
    lines = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            lines.append(f"{indent}{name}:\n{as_yaml(item, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(item)}\n")
    return "".join(lines)
