"""The options that `orch train` has only with --on slurm, and those that it refuses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from orchestrator.planning.refusal import Refusal
from orchestrator.targets.entry import TargetEntry, option


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The options of a request that only Slurm has."""

    on: ClassVar[str] = "slurm"

    slurm: tuple[str, ...] = option(
        (),
        for_shared_folder=True,
        metavar="KEY=VALUE",
        help="Option of sbatch, such as partition, account, time, cpus-per-task, constraint or exclusive; or "
        "login=HOST (a login node reached through SSH), root, local, python, runs, pmi, setup, max-requeues or "
        "allocation. May be repeated.",
    )
    array: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE,VALUE",
        help="Start one run per value of a setting, as one job array; repeat to run all combinations. Append %N to "
        "run at most N at a time.",
    )
    slurm_file: Path | None = option(
        None,
        for_shared_folder=True,
        envvar="ORCH_SLURM_FILE",
        metavar="FILE",
        help="TOML file with --slurm settings. Default: orch-slurm.toml in the current folder.",
    )


ENTRY = TargetEntry(
    name="slurm",
    title="Slurm",
    summary="slurm: a Slurm job.",
    options=SlurmOptions,
    target="orchestrator.targets.batch.target:SlurmTarget",
    launchers=("srun",),
    has_shared_folder=True,
)
NODES = "is for nodes behind SSH"
REFUSES: Mapping[str, Refusal] = {
    "inventory": Refusal(NODES, "Use --slurm partition=NAME to choose nodes."),
    "exclude": Refusal(NODES, "Use --slurm exclude=NODES to leave nodes out."),
    "python": Refusal(NODES, "Use --slurm python=PATH with an interpreter that has the stack's packages."),
    "queue": Refusal(NODES, "Jobs of Slurm wait for free nodes by themselves."),
    "ccl_workers": Refusal(NODES, "Leave it out: each rank computes on all of its cores."),
    "fabric": Refusal(
        "is for nodes behind SSH, on which it was verified",
        "Leave it out: ranks use TCP over the network of the nodes.",
    ),
    "accelerate_config": Refusal("is not read on Slurm", "Use the options --nodes, --ppn and --precision."),
}
