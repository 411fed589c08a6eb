"""The request of the command line, and the unfinished run whose next attempt it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeVar

from orch_node.protocol.files import is_run_id
from orch_node.protocol.precision import AUTO
from orch_node.protocol.record import RunNode

from orchestrator.errors import RequestError
from orchestrator.model.decision import Decision
from orchestrator.model.hostlist import NodePattern as NodePattern
from orchestrator.model.hostlist import Nodes
from orchestrator.model.hostlist import parse_nodes as parse_nodes
from orchestrator.model.project import Project

# Half of torch.distributed's own timeout of a collective, and longer than any step, evaluation or compilation should
# take without reporting.
STALL_SECONDS = 900.0
RUNS_DIR = PurePath("runs")
PROJECT_MEGABYTES = 200


class TargetOptions(Protocol):
    """A frozen dataclass of one target's options, all with defaults; `on` is the target's name in `--on`."""

    on: ClassVar[str]


Options = TypeVar("Options", bound=TargetOptions)


def find_options(kind: type[Options], options: Iterable[TargetOptions]) -> Options:
    """Return the options of a target among those of all targets, or their defaults."""
    return next((target_options for target_options in options if isinstance(target_options, kind)), kind())


def parse_ppn(ppn: str) -> int | None:
    """Return the ranks per node, or None for auto.

    Raises:
        RequestError: if it is neither a positive number nor auto.
    """
    if ppn == "auto":
        return None
    try:
        number = int(ppn)
    except ValueError:
        raise RequestError(
            f"--ppn {ppn}: expected a number or auto.", hint="For four ranks per node: --ppn 4"
        ) from None
    if number < 1:
        raise RequestError(
            f"--ppn {ppn}: a node needs at least one rank.",
            hint="Use --ppn auto for one rank per NUMA node, or --exclude to leave out a node.",
        )
    return number


def check_name(name: str) -> None:
    """Raise RequestError unless this can be the name of a run."""
    if name == "last" or not is_run_id(name):
        raise RequestError(
            f"--name {name}: expected letters, digits, dots, underscores and hyphens, and not 'last'.",
            hint="Example: --name lr-1e-4",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The options of a command line as the user gave them.

    An option that was omitted is None, files and folders are names, settings are KEY=VALUE. Every target uses or
    refuses every field.
    """

    # What
    recipe: str
    name: str | None = None
    module: bool = False
    script_args: tuple[str, ...] = ()
    preset: str | None = None
    settings: tuple[str, ...] = ()
    array: tuple[str, ...] = ()
    array_sample: int | None = None
    recipe_path: tuple[PurePath, ...] = ()
    project: str | None = None
    project_limit: int = PROJECT_MEGABYTES
    requirements: str | None = None
    extra: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    env_file: PurePath | None = None
    stack: str = "current"
    python: str | None = None
    # Where
    on: str | None = None
    inventory: str = "local"
    nodes: Nodes | None = None
    exclude: str | None = None
    wait_for_cores: bool = False
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
    stall_timeout: float = STALL_SECONDS
    max_restarts: int = 0
    spare_nodes: int = 0
    min_nodes: int = 0
    stop_on_nan: bool = False
    # Image of the ranks
    image: str | None = None
    image_options: tuple[str, ...] = ()
    # Options of a single target, and the folder of run records
    options: tuple[TargetOptions, ...] = ()
    runs_dir: PurePath = RUNS_DIR
    # Which options come from the environment or from a file
    defaults: tuple[Decision, ...] = ()

    def options_of(self, kind: type[Options]) -> Options:
        """Return a target's own options, or their defaults."""
        return find_options(kind, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run whose next attempt is planned, in the same folders.

    Attributes:
        run_id: the id of the run.
        run_dir: the run's folder on its nodes.
        started_by: the user and host that started the run.
        created: when the run was planned, in seconds since the epoch.
        state: how its last attempt ended.
        attempt: the number of the next attempt.
        precision: as planned; `auto` if its ranks chose it.
        nodes: the nodes of all attempts, node0 of the last one first.
        project: the files that were sent with a script, or None.
        sends_code: whether to bring the run's copy of the project up to date.
        forces: whether to continue although data or settings have changed.
        without_files: whether to continue without the files of the last node0.
    """

    run_id: str
    run_dir: str
    started_by: str
    created: float
    state: str
    attempt: int = 2
    precision: str = AUTO
    nodes: tuple[RunNode, ...] = ()
    project: Project | None = None
    sends_code: bool = False
    forces: bool = False
    without_files: bool = False
