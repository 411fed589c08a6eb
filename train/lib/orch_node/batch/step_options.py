"""Options of the steps of a job.

Steps share all cores with the step that holds the agents. Slurm must not end any rank by itself,
so that orch can report which rank has failed first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

STEP = ("--overlap", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL")
# The same options as environment variables, for steps that hydra starts.
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
