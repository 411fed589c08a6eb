"""mpirun of Open MPI 5 (PRRTE). As root it runs only if told so: its supervisor tells it."""

from __future__ import annotations

from orch_node.protocol import mpirun
from orch_node.protocol.files import HOSTFILE

from orchestrator.launchers.job import Job, Launch
from orchestrator.model.command import Command

# A tree of ssh connections hangs above 64 hosts (Open MPI 5.0.11).
WIDEST_TREE = 64
# What a rank on another node would not have otherwise; all else it reads from the run's files.
CARRIED = ("ORCH_RUN_DIR", "ORCH_ATTEMPT", "PATH")


def launch(job: Job) -> Launch:
    """Raises PlanError without an mpirun."""
    program, size = job.mpi_program(), job.layout.world_size
    words = mpirun.open_mpi(program, job.hostfile, size, job.ranks, options=between_nodes(job), carried=CARRIED)
    return Launch(
        command=Command(argv=words.argv),
        summary="mpirun of Open MPI",
        files={HOSTFILE: job.hosts()},
        size_at=words.size_at,
    )


def environment(job: Job) -> tuple[tuple[str, str], ...]:
    """The same for a mpirun that another program starts, without these words: as variables."""
    words = between_nodes(job)
    found = [("OMPI_MCA_mca_base_env_list", ";".join(CARRIED))]
    for kind, name, value in zip(words[::3], words[1::3], words[2::3], strict=True):
        prefix = "PRTE_MCA" if kind == "--prtemca" else "OMPI_MCA"
        found.append((f"{prefix}_{name}", value))
    return tuple(found)


def between_nodes(job: Job) -> tuple[str, ...]:
    if len(job.nodes) == 1:
        return ()
    interfaces = ",".join(job.interfaces)
    straight = ("--prtemca", "plm_ssh_no_tree_spawn", "1")
    return (
        *("--prtemca", "plm_ssh_agent", f"ssh {job.ssh_options}"),
        *("--prtemca", "prte_if_include", interfaces),
        *("--mca", "btl_tcp_if_include", interfaces),
        *(straight if len(job.nodes) >= WIDEST_TREE else ()),
    )
