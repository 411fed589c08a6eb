"""mpiexec.hydra of Intel MPI. Never its `mpirun`: that shell wrapper swallows signals."""

from __future__ import annotations

from orchestrator.command import Command
from orchestrator.launchers.job import HOSTFILE, Job, Launch

# Pinning belongs to rank.py alone.
ENVIRONMENT = (("I_MPI_PIN", "0"),)
TREE_WIDTH = 16


def launch(job: Job) -> Launch:
    """Raises PlanError without an mpiexec.

    With -f, and with -ppn, hydra gives every host the same number of ranks whatever the file says
    (Intel MPI 2021.18); -machinefile honours the number behind each host.
    """
    head = (job.mpi_program(), "-machinefile", job.hostfile, "-n")
    return Launch(
        command=Command(argv=(*head, str(job.layout.world_size), *job.ranks), env=environment(job)),
        summary="mpiexec.hydra of Intel MPI",
        files={HOSTFILE: job.hosts("{address}:{ranks}")},
        size_at=len(head),
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
