"""`accelerate launch` on node0, which starts mpirun, or torchrun on GPUs, as its configuration file says."""

from __future__ import annotations

from orch_node.protocol.files import HOSTFILE

from orchestrator.errors import PlanError
from orchestrator.model.command import Command
from orchestrator.planning.launchers import accelerate_config, mpirun
from orchestrator.planning.launchers.job import NAMES, Job, Launch

# Without mpirun, nothing sets the rank of the single process.
SINGLE_PROCESS = (("RANK", "0"), ("WORLD_SIZE", "1"))
PROGRAM = ("-m", "accelerate.commands.launch")


def launch(job: Job) -> Launch:
    """Return the command of accelerate.

    The numbers are also on the command line, where a restart with fewer nodes changes them.

    Raises:
        PlanError: if accelerate or mpirun is missing, the nodes have different numbers of ranks, or several nodes GPUs.
    """
    version = accelerate_config.version_of(job)
    check_even(job)
    if job.on_gpus and len(job.nodes) > 1:
        raise PlanError(
            "--launcher accelerate starts ranks on several nodes by mpirun, and then only on CPUs.",
            hint="On GPUs use --launcher mpirun-accelerate, mpirun or torchrun.",
        )
    program = "" if job.on_gpus else job.mpi_program()
    config = accelerate_config.config(job, version, starts_mpirun=True)
    head = (*(job.ranks[0], *PROGRAM), *("--config_file", f"{job.run_dir}/{accelerate_config.NAME}"), "--num_processes")
    argv = (
        *(*head, str(job.layout.world_size), "--num_machines", str(len(job.nodes))),
        *job.ranks[1:],  # accelerate starts the Python that it runs on
    )
    single = job.layout.world_size == 1
    launcher = "torchrun" if job.on_gpus else f"mpirun of {NAMES[job.mpi]}"
    action = "starts one process" if single else f"starts {launcher}"
    environment = () if job.on_gpus else mpirun.environment(job)
    return Launch(
        command=Command(argv=argv, env=SINGLE_PROCESS if single else environment),
        summary=f"accelerate {version}, which {action}",
        files={HOSTFILE: job.hosts(), accelerate_config.NAME: accelerate_config.as_yaml(config)},
        environment=accelerate_config.environment(job),
        size_at=len(head),
        nodes_at=len(head) + 2,
        path=program.rpartition("/")[0],
    )


def check_even(job: Job) -> None:
    """Raise PlanError if nodes have different numbers of ranks, because accelerate passes -ppn."""
    counts = {node: len(rank_places) for node, rank_places in job.layout.by_node().items()}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{count} on {node}" for node, count in counts.items())
        raise PlanError(
            f"--launcher accelerate requires the same number of ranks on every node, not {listing}.",
            hint="Add --ppn, or use --launcher mpirun or mpirun-accelerate.",
        )
