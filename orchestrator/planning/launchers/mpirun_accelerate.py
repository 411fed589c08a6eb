"""mpirun starts `accelerate launch` once for each rank, and that starts a single process."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.planning.launchers import accelerate_config, mpirun
from orchestrator.planning.launchers.accelerate import PROGRAM
from orchestrator.planning.launchers.job import Job, Launch


def launch(job: Job) -> Launch:
    """Return the command of mpirun; raise PlanError if accelerate or mpirun is missing."""
    version = accelerate_config.version_of(job)
    config = accelerate_config.config(job, version, starts_mpirun=False)
    path = f"{job.run_dir}/{accelerate_config.NAME}"
    # accelerate keeps running while its rank does, and would keep the socket that hydra leaves open.
    closing = (job.ranks[0], f"{job.train}/node.py", "no-listen")
    rank_command = (*closing, job.ranks[0], *PROGRAM, "--config_file", path, *job.ranks[1:])
    mpi_launch = mpirun.launch(replace(job, ranks=rank_command))
    return replace(
        mpi_launch,
        summary=f"{mpi_launch.summary}, which starts accelerate {version} for each rank",
        shared={accelerate_config.NAME: accelerate_config.as_yaml(config)},
        environment=accelerate_config.environment(job),
    )
