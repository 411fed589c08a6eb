"""The launchers of the three flavours of MPI."""

from __future__ import annotations

from orchestrator.launchers import intel_mpi, mpich, open_mpi
from orchestrator.launchers.job import Job, Launch

DIALECTS = {"intel": intel_mpi.launch, "mpich": mpich.launch, "openmpi": open_mpi.launch}


def launch(job: Job) -> Launch:
    """Raises PlanError where the nodes do not have this flavour."""
    return DIALECTS[job.mpi](job)
