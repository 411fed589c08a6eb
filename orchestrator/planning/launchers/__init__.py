"""Launchers: each turns a Job into a Launch."""

from __future__ import annotations

from orchestrator.planning.launchers import accelerate, mpirun, mpirun_accelerate, torchrun
from orchestrator.planning.launchers.job import NAMES, Job, Launch

LAUNCHERS = {
    "mpirun": mpirun.launch,
    "torchrun": torchrun.launch,
    "accelerate": accelerate.launch,
    "mpirun-accelerate": mpirun_accelerate.launch,
}
DEFAULT = "mpirun"
# These restart failed ranks themselves.
RESTARTING = ("torchrun",)
WITHOUT_MPI = ("torchrun",)
IMPLEMENTATIONS = tuple(mpirun.IMPLEMENTATIONS)

__all__ = [
    "DEFAULT",
    "IMPLEMENTATIONS",
    "LAUNCHERS",
    "NAMES",
    "RESTARTING",
    "WITHOUT_MPI",
    "Job",
    "Launch",
    "transport",
]


def transport(launcher: str, mpi: str, *, contained: bool = False) -> str:
    """Return oneCCL's transport under this launcher: mpi or ofi.

    MPI initializes correctly only under hydra, where Intel's library serves both. Open MPI's daemon speaks PMIx,
    torchrun has no such service, and hydra's socket survives neither an `accelerate launch` between hydra and a rank
    nor the start in a container.
    """
    under_hydra = not contained and launcher in ("mpirun", "accelerate") and mpi in ("intel", "mpich")
    return "mpi" if under_hydra else "ofi"
