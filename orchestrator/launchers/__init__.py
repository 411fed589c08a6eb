"""How ranks are started: Job -> Launch, one file each."""

from __future__ import annotations

from orchestrator.launchers import accelerate, mpirun, mpirun_accelerate, torchrun
from orchestrator.launchers.job import NAMES, Job, Launch

LAUNCHERS = {
    "mpirun": mpirun.launch,
    "torchrun": torchrun.launch,
    "accelerate": accelerate.launch,
    "mpirun-accelerate": mpirun_accelerate.launch,
}
DEFAULT = "mpirun"
# These start failed ranks again themselves.
RESTARTING = ("torchrun",)
WITHOUT_MPI = ("torchrun",)
DIALECTS = tuple(mpirun.DIALECTS)

__all__ = ["DEFAULT", "DIALECTS", "LAUNCHERS", "NAMES", "RESTARTING", "WITHOUT_MPI", "Job", "Launch", "transport"]


def transport(launcher: str, mpi: str, *, contained: bool = False) -> str:
    """How oneCCL can talk below this launcher: MPI starts only right under hydra, where Intel's
    library serves both flavours. Open MPI's daemon speaks PMIx, torchrun none of these, and neither
    an `accelerate launch` between hydra and a rank nor the start in a container keeps hydra's
    socket."""
    hydra = not contained and launcher in ("mpirun", "accelerate") and mpi in ("intel", "mpich")
    return "mpi" if hydra else "ofi"
