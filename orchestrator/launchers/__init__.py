"""How ranks are started: Job -> Launch, one file each."""

from __future__ import annotations

from orchestrator.launchers import mpirun
from orchestrator.launchers.job import NAMES, Job, Launch

LAUNCHERS = {"mpirun": mpirun.launch}
DIALECTS = tuple(mpirun.DIALECTS)

__all__ = ["DIALECTS", "LAUNCHERS", "NAMES", "Job", "Launch", "transport"]


def transport(launcher: str, mpi: str) -> str:
    """How oneCCL can talk below this launcher: MPI starts only under hydra, where Intel's library
    serves both flavours; Open MPI's daemon speaks PMIx, and torchrun none of these."""
    return "mpi" if launcher == "mpirun" and mpi in ("intel", "mpich") else "ofi"
