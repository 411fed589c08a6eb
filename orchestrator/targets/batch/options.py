"""The options of batch systems on the command line, without what submits their jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.targets.entry import TargetEntry, option

SETTINGS_FILE: dict[str, Any] = {"for_shared_folder": True, "metavar": "FILE"}
SETTINGS_HELP = "TOML file with --{system} settings. Default: orch-{system}.toml in the current folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsOptions:
    """The options of a request that only PBS has."""

    on: ClassVar[str] = "pbs"

    pbs: tuple[str, ...] = option(
        (),
        for_shared_folder=True,
        metavar="KEY=VALUE",
        help="Option of qsub: queue, select (the resources of each node, such as ncpus=64:mem=200gb), place, walltime, "
        "account, project or a resource of the site; or login=HOST (a login node reached through SSH), root, "
        "runs, setup or max-requeues. May be repeated.",
    )
    pbs_file: Path | None = option(
        None, envvar="ORCH_PBS_FILE", help=SETTINGS_HELP.format(system="pbs"), **SETTINGS_FILE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The options of a request that only Slurm has."""

    on: ClassVar[str] = "slurm"

    slurm: tuple[str, ...] = option(
        (),
        for_shared_folder=True,
        metavar="KEY=VALUE",
        help="Option of sbatch, such as partition, account, time, cpus-per-task, constraint or exclusive; or "
        "login=HOST (a login node reached through SSH), root, runs, pmi, setup, max-requeues or "
        "allocation. May be repeated.",
    )
    slurm_file: Path | None = option(
        None, envvar="ORCH_SLURM_FILE", help=SETTINGS_HELP.format(system="slurm"), **SETTINGS_FILE
    )


PBS = TargetEntry(
    name="pbs",
    title="PBS",
    summary="pbs: a job of OpenPBS or PBS Professional.",
    options=PbsOptions,
    target="orchestrator.targets.batch.pbs:target",
    has_shared_folder=True,
)
SLURM = TargetEntry(
    name="slurm",
    title="Slurm",
    summary="slurm: a Slurm job.",
    options=SlurmOptions,
    target="orchestrator.targets.batch.slurm:target",
    launchers=("srun",),
    has_shared_folder=True,
)
