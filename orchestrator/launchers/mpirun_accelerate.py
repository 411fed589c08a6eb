"""mpirun starts `accelerate launch` once for each rank, which starts that one process."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.launchers import accelerate_config, mpirun
from orchestrator.launchers.accelerate import PROGRAM
from orchestrator.launchers.job import Job, Launch


def launch(job: Job) -> Launch:
    """Raises PlanError without accelerate or mpirun."""
    version = accelerate_config.version_of(job)
    config = accelerate_config.config(job, version, starts_mpirun=False)
    path = f"{job.run_dir}/{accelerate_config.NAME}"
    # accelerate stays beside its rank, and would hold the socket that hydra leaves open.
    closing = (job.ranks[0], f"{job.train}/node.py", "unlistening")
    each = (*closing, job.ranks[0], *PROGRAM, "--config_file", path, *job.ranks[1:])
    started = mpirun.launch(replace(job, ranks=each))
    return replace(
        started,
        summary=f"{started.summary}, which starts accelerate {version} for each rank",
        shared={accelerate_config.NAME: accelerate_config.as_yaml(config)},
        environment=accelerate_config.environment(job),
    )
