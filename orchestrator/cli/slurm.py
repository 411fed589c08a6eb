"""What `orch train --on slurm` and `orch provision --on slurm` have of their own."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.groups import Group
from orchestrator.cli.train import TargetFlags
from orchestrator.targets.slurm.options import SlurmOptions

TRAIN = TargetFlags(
    on=SlurmOptions.on,
    summary="slurm: as a job of Slurm.",
    launchers=("srun",),
    group=Group(
        kind=SlurmOptions,
        panels={
            "Slurm": {
                "slurm": typer.Option(
                    metavar="KEY=VALUE",
                    help="An option of sbatch, such as partition, account, time, cpus-per-task, "
                    "constraint, exclusive; or login=HOST (a login node behind SSH), root, local, "
                    "python, runs, pmi, setup, max-requeues, allocation; may be repeated.",
                ),
                "array": typer.Option(
                    metavar="KEY=VALUE,VALUE",
                    help="One run for each of these values of a setting, as one job array; given "
                    "again, one for each combination; %N at the end lets N go at once.",
                ),
                "container": typer.Option(
                    metavar="IMAGE",
                    help="Run the ranks in this image, which all nodes see: a .sif or a folder by "
                    "Apptainer or Singularity, a .sqsh by Pyxis. --slurm container-python, "
                    "container-mounts, container-env-file, container-arguments set the rest.",
                ),
                "slurm_file": typer.Option(
                    envvar="ORCH_SLURM_FILE",
                    metavar="FILE",
                    help="Such settings as TOML; default: orch-slurm.toml here.",
                ),
            }
        },
    ),
)
SHARED = replace(
    TRAIN,
    group=Group(
        kind=SlurmOptions,
        panels={"Slurm": {name: TRAIN.group.panels["Slurm"][name] for name in ("slurm", "slurm_file")}},
    ),
)
