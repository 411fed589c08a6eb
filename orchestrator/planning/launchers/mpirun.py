"""The launchers of Intel MPI, MPICH and Open MPI."""

from __future__ import annotations

from orch_node.protocol import mpirun
from orch_node.protocol.files import HOSTFILE

from orchestrator.model.command import Command
from orchestrator.planning.launchers.job import Job, Launch

# Intel MPI: only the ranks' wrappers pin ranks. A tree is 16 wide by default.
INTEL_ENVIRONMENT = (("I_MPI_PIN", "0"),)
INTEL_TREE_WIDTH = 16
# Open MPI: with a tree of ssh connections, a start on more than 64 hosts hangs (5.0.11).
MAX_OPEN_MPI_TREE = 64
# The variables of a rank on another node; it reads all others from the run's files.
PASSED_VARIABLES = ("ORCH_RUN_DIR", "ORCH_ATTEMPT", "PATH")


def launch(job: Job) -> Launch:
    """Return the command of the job's MPI implementation; raise PlanError if a node lacks the implementation."""
    return IMPLEMENTATIONS[job.mpi](job)


def environment(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the variables with which another program can start the job's MPI implementation."""
    return ENVIRONMENTS[job.mpi](job)


def launch_intel(job: Job) -> Launch:
    command = mpirun.intel(job.mpi_program(), job.hostfile, job.layout.world_size, job.ranks)
    return Launch(
        command=Command(argv=command.argv, env=intel_environment(job)),
        summary="mpiexec.hydra of Intel MPI",
        files={HOSTFILE: job.hosts()},
        size_at=command.size_at,
    )


def intel_environment(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the variables with which hydra reaches the other nodes.

    The proxies of a tree look up the name of node0's interface on their own node. If the names differ, node0 must
    start all proxies itself.
    """
    if len(job.nodes) == 1:
        return INTEL_ENVIRONMENT
    needs_flat_tree = len(job.interfaces) > 1 and len(job.nodes) > INTEL_TREE_WIDTH
    return (
        *INTEL_ENVIRONMENT,
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", job.ssh_program),
        ("I_MPI_HYDRA_IFACE", job.links[0].interface),
        *([("I_MPI_HYDRA_BRANCH_COUNT", str(len(job.nodes)))] if needs_flat_tree else []),
    )


def launch_mpich(job: Job) -> Launch:
    """Return the command of MPICH, which by default neither binds ranks nor starts a tree."""
    command = mpirun.mpich(job.mpi_program(), job.hostfile, job.layout.world_size, job.ranks)
    return Launch(
        command=Command(argv=command.argv, env=mpich_environment(job)),
        summary="mpiexec.hydra of MPICH",
        files={HOSTFILE: job.hosts()},
        size_at=command.size_at,
    )


def mpich_environment(job: Job) -> tuple[tuple[str, str], ...]:
    if len(job.nodes) == 1:
        return ()
    return (
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXEC", job.ssh_program),
        ("HYDRA_IFACE", job.links[0].interface),
    )


def launch_open_mpi(job: Job) -> Launch:
    """Return the command of Open MPI 5 (PRRTE); the supervisor allows it to run as root."""
    program, size = job.mpi_program(), job.layout.world_size
    options = open_mpi_options(job)
    command = mpirun.open_mpi(program, job.hostfile, size, job.ranks, options=options, exported=PASSED_VARIABLES)
    return Launch(
        command=Command(argv=command.argv),
        summary="mpirun of Open MPI",
        files={HOSTFILE: job.hosts()},
        size_at=command.size_at,
    )


def open_mpi_environment(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the options as variables, for an mpirun that another program starts without them."""
    options = open_mpi_options(job)
    variables = [("OMPI_MCA_mca_base_env_list", ";".join(PASSED_VARIABLES))]
    for kind, name, value in zip(options[::3], options[1::3], options[2::3], strict=True):
        prefix = "PRTE_MCA" if kind == "--prtemca" else "OMPI_MCA"
        variables.append((f"{prefix}_{name}", value))
    return tuple(variables)


def open_mpi_options(job: Job) -> tuple[str, ...]:
    """Return the options for several nodes."""
    if len(job.nodes) == 1:
        return ()
    interfaces = ",".join(job.interfaces)
    flat_tree = ("--prtemca", "plm_ssh_no_tree_spawn", "1")
    return (
        *("--prtemca", "plm_ssh_agent", job.ssh_program),
        *("--prtemca", "prte_if_include", interfaces),
        *("--mca", "btl_tcp_if_include", interfaces),
        *(flat_tree if len(job.nodes) >= MAX_OPEN_MPI_TREE else ()),
    )


IMPLEMENTATIONS = {"intel": launch_intel, "mpich": launch_mpich, "openmpi": launch_open_mpi}
ENVIRONMENTS = {"intel": intel_environment, "mpich": mpich_environment, "openmpi": open_mpi_environment}
