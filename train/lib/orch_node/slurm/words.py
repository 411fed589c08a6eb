"""How steps of a job are started: beside the one that holds the agents, on all its cores, and such
that Slurm ends no rank by itself: which one has failed first is told before the others end."""

from __future__ import annotations

import os
from collections.abc import Sequence

STEP = ("--overlap", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL")
# The same for steps that hydra starts.
VARIABLES = {
    "SLURM_OVERLAP": "1",
    "SLURM_CPU_BIND": "none",
    "SLURM_NO_KILL": "set",
    "SLURM_KILL_BAD_EXIT": "0",
    "SLURM_WAIT": "0",
    "SLURM_MPI_TYPE": "none",
}


def one_task_each(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the options of srun for a step with one task on each of these nodes of the job."""
    count = str(len(nodes))
    options = ("--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--mpi=none")
    # A run in a held allocation may use its first nodes only. The list of all nodes of a large job
    # would be longer than an argument may be.
    is_part = os.environ.get("SLURM_JOB_NUM_NODES", count) != count
    return (*options, "--nodelist", ",".join(nodes)) if is_part else options
