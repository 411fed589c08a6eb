"""Options of `orch train --on slurm` and `orch provision --on slurm`."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.groups import Group
from orchestrator.cli.train import TargetCommandLine
from orchestrator.targets.slurm.options import SlurmOptions

TRAIN = TargetCommandLine(
    name=SlurmOptions.on,
    summary="slurm: a Slurm job.",
    launchers=("srun",),
    options=Group(
        kind=SlurmOptions,
        panels={
            "Slurm": {
                "slurm": typer.Option(
                    metavar="KEY=VALUE",
                    help="Option of sbatch, such as partition, account, time, cpus-per-task, "
                    "constraint or exclusive; or login=HOST (a login node reached through SSH), root, local, "
                    "python, runs, pmi, setup, max-requeues or allocation. May be repeated.",
                ),
                "array": typer.Option(
                    metavar="KEY=VALUE,VALUE",
                    help="Start one run per value of a setting, as one job array; repeat to run all "
                    "combinations. Append %N to run at most N at a time.",
                ),
                "container": typer.Option(
                    metavar="IMAGE",
                    help="Run the ranks in this image on a shared file system: a .sif file or a folder with "
                    "Apptainer or Singularity, a .sqsh file with Pyxis. More settings: --slurm "
                    "container-python, container-mounts, container-env-file, container-arguments.",
                ),
                "slurm_file": typer.Option(
                    envvar="ORCH_SLURM_FILE",
                    metavar="FILE",
                    help="TOML file with --slurm settings. Default: orch-slurm.toml in the current folder.",
                ),
            }
        },
    ),
)
SHARED = replace(
    TRAIN,
    options=Group(
        kind=SlurmOptions,
        panels={"Slurm": {name: TRAIN.options.panels["Slurm"][name] for name in ("slurm", "slurm_file")}},
    ),
)
