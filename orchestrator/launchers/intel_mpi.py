"""mpiexec.hydra of Intel MPI."""

from __future__ import annotations

from orch_node.protocol import mpirun
from orch_node.protocol.files import HOSTFILE

from orchestrator.launchers.job import Job, Launch
from orchestrator.model.command import Command

# Pinning belongs to the ranks' wrappers alone.
ENVIRONMENT = (("I_MPI_PIN", "0"),)
TREE_WIDTH = 16


def launch(job: Job) -> Launch:
    """Raises PlanError without an mpiexec."""
    words = mpirun.intel(job.mpi_program(), job.hostfile, job.layout.world_size, job.ranks)
    return Launch(
        command=Command(argv=words.argv, env=environment(job)),
        summary="mpiexec.hydra of Intel MPI",
        files={HOSTFILE: job.hosts()},
        size_at=words.size_at,
    )


def environment(job: Job) -> tuple[tuple[str, str], ...]:
    """How hydra reaches the other nodes: with the cluster's own key and known hosts.

    The proxies of a tree look up node0's interface by its name on their own node; where that has
    another name, all of them have to be started from node0 (16 is hydra's own width).
    """
    if len(job.nodes) == 1:
        return ENVIRONMENT
    uneven = len(job.interfaces) > 1 and len(job.nodes) > TREE_WIDTH
    return (
        *ENVIRONMENT,
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", job.ssh_options),
        ("I_MPI_HYDRA_IFACE", job.links[0].interface),
        *([("I_MPI_HYDRA_BRANCH_COUNT", str(len(job.nodes)))] if uneven else []),
    )
