"""The configuration file of accelerate, as the version of the stack reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from packaging.version import Version

from orchestrator.errors import PlanError
from orchestrator.launchers.job import Job

NAME = "accelerate.yaml"
# mpirun_config came with 0.28; ipex_config and mpirun_ccl went with 1.13, where ipex_config is an
# unknown key and an error (config_args.py and utils/launch.py of the wheels 0.27 to 1.15).
FIRST_WITH_MPIRUN = Version("0.28")
FIRST_WITHOUT_IPEX = Version("1.13")
PRECISIONS = {"bf16": "bf16", "fp32": "no"}


def version_of(job: Job) -> Version:
    """Raises PlanError where a node has no accelerate, or too old a one."""
    for node in job.nodes:
        if "accelerate" not in node.facts.packages:
            raise PlanError(
                f"{node.name} has no accelerate beside {node.python}.",
                hint="Take a stack that has it (`orch stacks`), or --launcher mpirun.",
            )
    version = Version(job.nodes[0].facts.packages["accelerate"])
    if version < FIRST_WITH_MPIRUN:
        raise PlanError(
            f"accelerate {version} cannot start mpirun: that came with {FIRST_WITH_MPIRUN}.",
            hint="Use --launcher mpirun-accelerate, where mpirun starts accelerate.",
        )
    return version


def config(job: Job, version: Version, *, starts_mpirun: bool) -> dict[str, object]:
    """What accelerate is told; the rest of a user's own file stays as it is."""
    ranks = job.layout.world_size
    old = version < FIRST_WITHOUT_IPEX
    mpirun: dict[str, object] = {"mpirun_hostfile": job.hostfile}
    if old:
        mpirun["mpirun_ccl"] = str(max(1, len(job.layout.places[0].worker_cpus)))
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if ranks > 1 else "NO",
        "use_cpu": True,
        "mixed_precision": mixed_precision(job),
        "num_machines": len(job.nodes),
        "num_processes": ranks,
        "machine_rank": 0,
        "main_process_ip": job.address,
        "main_process_port": job.port,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": False,
        "debug": False,
        **({"ipex_config": {"ipex": job.ipex, "use_xpu": False}} if old else {}),
        **({"mpirun_config": mpirun} if starts_mpirun and ranks > 1 else {}),
    }
    kept = {name: value for name, value in job.accelerate.items() if name not in OURS}
    return {**found, **kept}


# Decided by the plan, whatever a user's file says (planning/accelerate_options.py tells which).
OURS = (
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


def mixed_precision(job: Job) -> str:
    return PRECISIONS.get(job.precision, "no")


def environment(job: Job) -> dict[str, str]:
    """What `accelerate launch` sets for a script's Accelerator(): the same on every node, also
    where mpirun carries no environment there."""
    return {"ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": mixed_precision(job)}


def as_yaml(value: Mapping[str, object], indent: str = "") -> str:
    """Strings in JSON's quotes, which are YAML's too."""
    lines = []
    for name, one in value.items():
        if isinstance(one, Mapping) and one:
            lines.append(f"{indent}{name}:\n{as_yaml(one, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(one)}\n")
    return "".join(lines)
