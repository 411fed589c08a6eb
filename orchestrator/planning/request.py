"""What was asked for, and the unfinished run that it carries on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeVar

from orch_node.protocol.precision import AUTO

# Half of the time after which torch.distributed gives a collective up by itself, and longer than
# any step, evaluation or compilation that reports nothing should take.
STALL_SECONDS = 900.0
RUNS_DIR = PurePath("runs")


class TargetOptions(Protocol):
    """A frozen dataclass of options that one target alone has; each of its fields has a default.

    `on`: what `--on` says to mean that target.
    """

    on: ClassVar[str]


Own = TypeVar("Own", bound=TargetOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for on the command line, and no more: None where the user left it open, files
    and folders by their names, settings as KEY=VALUE. No target leaves a field unread: it consumes
    it, or refuses it with a reason."""

    # What
    recipe: str
    module: bool = False
    script_args: tuple[str, ...] = ()
    preset: str | None = None
    settings: tuple[str, ...] = ()
    recipe_path: tuple[PurePath, ...] = ()
    stack: str = "current"
    # Where
    on: str | None = None
    inventory: str = "local"
    nodes: str | None = None
    exclude: str | None = None
    queue: bool = False
    # Ranks
    ppn: int | None = None
    launcher: str | None = None
    mpi: str | None = None
    accelerate_config: str | None = None
    backend: str | None = None
    ccl_workers: int = 0
    fabric: str | None = None
    # Precision
    precision: str = AUTO
    allow_slow_bf16: bool = False
    ipex: bool = False
    # Restarts
    fresh: bool = False
    stall_timeout: float = STALL_SECONDS
    max_restarts: int = 0
    spare_nodes: int = 0
    min_nodes: int = 0
    # Containers
    docker_image: str | None = None
    docker: tuple[str, ...] = ()
    # What one target alone has, and where records are kept
    options: tuple[TargetOptions, ...] = ()
    runs_dir: PurePath = RUNS_DIR

    def own(self, kind: type[Own]) -> Own:
        """The target's own options, as given or else their defaults."""
        return next((one for one in self.options if isinstance(one, kind)), kind())


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run of the same request, whose output directory is carried on."""

    run_id: str
    state: str
    output_dir: str
    precision: str = AUTO  # as planned; `auto` if its ranks chose it
