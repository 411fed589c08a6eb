"""pod.json: what a pod of a run has to know, once for all of its pods."""

from __future__ import annotations

from dataclasses import dataclass

from orch_node.protocol import values
from orch_node.protocol.layout import RunPrecision

SCHEMA = 1


@dataclass(frozen=True)
class SshAccess:
    """How the launcher reaches the workers: a folder with the job's keys, and a port."""

    folder: str
    port: int


@dataclass(frozen=True)
class PodConfig:
    """`mpi`: Intel or OpenMPI, as the operators call them, where MPI starts the ranks. `cpus`: of
    one pod; `threads`: of one rank. `env`: variables of all ranks; `preload`: names of libraries,
    where the image has them. Zero for stall_timeout (seconds) is for ever. `precision`:
    None where the plan has decided."""

    run_id: str
    run_dir: str
    mpi: str | None
    pods: int
    word: str
    ppn: int
    cpus: float
    threads: int
    backend: str
    backend_module: str
    timeout_seconds: float
    env: dict[str, str]
    preload: tuple[str, ...]
    stack: str
    needs_bf16: bool
    stall_timeout: float
    max_restarts: int
    ssh: SshAccess
    precision: RunPrecision | None = None
    schema: int = SCHEMA

    @property
    def world_size(self) -> int:
        return self.pods * self.ppn


def parse(text: str | bytes) -> PodConfig:
    """Raises ProtocolError."""
    return values.parse(PodConfig, text, "pod.json")
