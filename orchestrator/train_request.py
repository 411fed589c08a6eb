"""What was asked for, and the unfinished run that it carries on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.accelerate_file import Wishes
from orchestrator.docker import Docker
from orchestrator.recipe import Value

# Half of the time after which torch.distributed gives a collective up by itself, and longer than
# any step, evaluation or compilation that reports nothing should take.
STALL_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for on the command line; None where the user left it open."""

    recipe: str
    inventory: str = "local"
    nodes: str | None = None
    exclude: str | None = None
    ppn: int | None = None
    stack: str = "current"
    launcher: str = "mpirun"
    mpi: str | None = None
    backend: str | None = None
    precision: str | None = None
    allow_slow_bf16: bool = False
    ccl_workers: int = 0
    ipex: bool = False
    preset: str | None = None
    settings: Mapping[str, Value]
    script_args: tuple[str, ...] = ()
    fresh: bool = False
    stall_timeout: float = STALL_SECONDS
    max_restarts: int = 0
    spare_nodes: int = 0
    min_nodes: int = 0
    wishes: Wishes | None = None
    docker: Docker | None = None
    queue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run of the same request, whose output directory is carried on."""

    run_id: str
    state: str
    output_dir: str
