"""`accelerate launch` on node0, which starts mpirun by its configuration file."""

from __future__ import annotations

from orch_node.protocol.files import HOSTFILE

from orchestrator.errors import PlanError
from orchestrator.launchers import accelerate_config, intel_mpi, mpich, open_mpi
from orchestrator.launchers.job import NAMES, Job, Launch
from orchestrator.model.command import Command

ENVIRONMENTS = {"intel": intel_mpi.environment, "mpich": mpich.environment, "openmpi": open_mpi.environment}
# Without mpirun nobody numbers the one process.
ALONE = (("RANK", "0"), ("WORLD_SIZE", "1"))
PROGRAM = ("-m", "accelerate.commands.launch")


def launch(job: Job) -> Launch:
    """Raises PlanError without accelerate or mpirun, or where nodes have unlike numbers of ranks.

    The numbers stand on the command line as well as in the file: a restart with fewer nodes
    changes them there.
    """
    version = accelerate_config.version_of(job)
    check_even(job)
    program = job.mpi_program()
    config = accelerate_config.config(job, version, starts_mpirun=True)
    head = (
        *(job.nodes[0].python, *PROGRAM),
        *("--config_file", f"{job.run_dir}/{accelerate_config.NAME}"),
        "--num_processes",
    )
    argv = (
        *(*head, str(job.layout.world_size), "--num_machines", str(len(job.nodes))),
        *job.ranks[1:],  # accelerate starts the Python that it runs on
    )
    alone = job.layout.world_size == 1
    mpirun = "starts one process" if alone else f"starts mpirun of {NAMES[job.mpi]}"
    return Launch(
        command=Command(argv=argv, env=ALONE if alone else ENVIRONMENTS[job.mpi](job)),
        summary=f"accelerate {version}, which {mpirun}",
        files={HOSTFILE: job.hosts(), accelerate_config.NAME: accelerate_config.as_yaml(config)},
        environment=accelerate_config.environment(job),
        size_at=len(head),
        nodes_at=len(head) + 2,
        path=program.rpartition("/")[0],
    )


def check_even(job: Job) -> None:
    """accelerate passes -ppn: the same number of ranks for every node."""
    counts = {node: len(places) for node, places in job.layout.by_node().items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} on {node}" for node, count in counts.items())
        raise PlanError(
            f"--launcher accelerate starts the same number of ranks on every node, not {told}.",
            hint="Give --ppn, or use --launcher mpirun or mpirun-accelerate.",
        )
