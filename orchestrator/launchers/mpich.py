"""mpiexec.hydra of MPICH. It binds no rank unless it is told to, and starts no tree."""

from __future__ import annotations

from orchestrator.command import Command
from orchestrator.launchers.job import HOSTFILE, Job, Launch


def launch(job: Job) -> Launch:
    """Raises PlanError without an mpiexec."""
    head = (job.mpi_program(), "-f", job.hostfile, "-n")
    return Launch(
        command=Command(argv=(*head, str(job.layout.world_size), *job.ranks), env=environment(job)),
        summary="mpiexec.hydra of MPICH",
        files={HOSTFILE: job.hosts("{address}:{ranks}")},
        size_at=len(head),
    )


def environment(job: Job) -> tuple[tuple[str, str], ...]:
    if len(job.nodes) == 1:
        return ()
    return (
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXTRA_ARGS", job.ssh_options),
        ("HYDRA_IFACE", job.links[0].interface),
    )
