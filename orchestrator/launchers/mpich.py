"""mpiexec.hydra of MPICH. It binds no rank unless it is told to, and starts no tree."""

from __future__ import annotations

from orch_node.protocol import mpirun
from orch_node.protocol.files import HOSTFILE

from orchestrator.launchers.job import Job, Launch
from orchestrator.model.command import Command


def launch(job: Job) -> Launch:
    """Raises PlanError without an mpiexec."""
    words = mpirun.mpich(job.mpi_program(), job.hostfile, job.layout.world_size, job.ranks)
    return Launch(
        command=Command(argv=words.argv, env=environment(job)),
        summary="mpiexec.hydra of MPICH",
        files={HOSTFILE: job.hosts()},
        size_at=words.size_at,
    )


def environment(job: Job) -> tuple[tuple[str, str], ...]:
    if len(job.nodes) == 1:
        return ()
    return (
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXTRA_ARGS", job.ssh_options),
        ("HYDRA_IFACE", job.links[0].interface),
    )
