"""How steps of a job are started: beside the one that holds the agents, on all its cores, and such
that Slurm ends no rank by itself: which one has failed first is told before the others end."""

from __future__ import annotations

STEP = (
    "--overlap",
    "--cpu-bind=none",
    "--no-kill",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--export=ALL",
)
# The same for steps that hydra starts.
VARIABLES = {
    "SLURM_OVERLAP": "1",
    "SLURM_CPU_BIND": "none",
    "SLURM_NO_KILL": "set",
    "SLURM_KILL_BAD_EXIT": "0",
    "SLURM_WAIT": "0",
    "SLURM_MPI_TYPE": "none",
}
