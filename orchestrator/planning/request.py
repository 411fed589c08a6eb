"""The request of the command line, and the unfinished run whose next attempt it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import PurePath
from typing import Any, ClassVar, Protocol, TypeVar

from orch_node.protocol.files import is_run_id
from orch_node.protocol.layout import AUTO
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import PlanError, RequestError
from orchestrator.model.decision import Decision
from orchestrator.model.hosts import Nodes
from orchestrator.model.hosts import parse_nodes as parse_nodes
from orchestrator.model.project import Project

# Half of torch.distributed's own timeout of a collective, and longer than any step, evaluation or compilation should
# take without reporting.
STALL_SECONDS = 900.0
RUNS_DIR = PurePath("runs")
PROJECT_MEGABYTES = 200


class TargetOptions(Protocol):
    """A frozen dataclass of one target's options, all with defaults; `on` is the target's name in `--on`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    on: ClassVar[str]


Options = TypeVar("Options", bound=TargetOptions)


def find_options(kind: type[Options], options: Iterable[TargetOptions]) -> Options:
    """Return the options of a target among those of all targets, or their defaults."""
    return next((target_options for target_options in options if isinstance(target_options, kind)), kind())


def parse_ppn(ppn: str | int) -> int | None:
    """Return the ranks per node, or None for auto.

    Raises:
        RequestError: if it is neither a positive number nor auto.
    """
    if ppn == "auto":
        return None
    if not str(ppn).isdecimal() or int(ppn) < 1:
        raise RequestError.about("ppn", ppn=ppn)
    return int(ppn)


def choose_python(python: object, venv: object) -> str | None:
    """Return the interpreter of --python, or that of the virtual environment of --venv.

    Raises:
        RequestError: if both are given.
    """
    if python and venv:
        raise RequestError(f"--python {python} and --venv {venv} exclude each other.", hint="Omit one of them.")
    path = f"{venv}/bin/python" if venv else python
    return None if path is None else str(path).replace("//", "/")


def check_name(name: str) -> None:
    """Raise RequestError unless this can be the name of a run."""
    if name == "last" or not is_run_id(name):
        raise RequestError.about("run-name", name=name)


OPTION, FOR_SHARED_FOLDER = "option", "for_shared_folder"  # in the metadata of a field
ARGUMENTS, TRAINING, NODES, RANKS = "Arguments", "What", "Where", "Ranks"  # panels of the help
# Of fields whose flags are not their names.
FLAGS = {"module": "--module", "settings": "--set", "packages": "--with", "image_options": "--image-option"}


def option(default: Any = None, *, for_shared_folder: bool = False, **arguments: Any) -> Any:
    """Return a field of a target's options that the command line and the Python interface have as an option.

    Args:
        default: the value without the option.
        for_shared_folder: whether `orch provision --on` has this option, too.
        arguments: what typer.Option takes, such as `help`, `metavar` and `envvar`.
    """
    return field(default=default, metadata={OPTION: arguments, FOR_SHARED_FOLDER: for_shared_folder})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The options of a command line as the user gave them; cli/options.toml has their help.

    An option that was omitted is None, files and folders are names, settings are KEY=VALUE. Every target uses or
    refuses every field.
    """

    recipe: str
    script_args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
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
    on: str | None = None  # its option names the targets, which packages can add
    inventory: str = "local"
    nodes: Nodes | None = None
    exclude: str | None = None
    wait_for_cores: bool = False
    ppn: int | None = None
    launcher: str | None = None
    mpi: str | None = None
    accelerate_config: str | None = None
    backend: str | None = None
    ccl_workers: int = 0
    fabric: str | None = None
    precision: str = AUTO
    allow_slow_bf16: bool = False
    ipex: bool = False
    kernels: str = AUTO
    stall_timeout: float = STALL_SECONDS
    max_restarts: int = 0
    spare_nodes: int = 0
    min_nodes: int = 0
    stop_on_nan: bool = False
    image: str | None = None
    image_options: tuple[str, ...] = ()
    options: tuple[TargetOptions, ...] = ()  # of single targets
    runs_dir: PurePath = RUNS_DIR  # the folder of run records
    defaults: tuple[Decision, ...] = ()  # which options come from the environment or from a file

    def options_of(self, kind: type[Options]) -> Options:
        """Return a target's own options, or their defaults."""
        return find_options(kind, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run whose next attempt is planned, in the same folders.

    Attributes:
        record: the record of the run.
        state: how its last attempt ended.
        attempt: the number of the next attempt.
        project: the files that were sent with a script, or None.
        sends_code: whether to bring the run's copy of the project up to date.
        forces: whether to continue although data or settings have changed.
        without_files: whether to continue without the files of the last node0.
    """

    record: RunRecord
    state: str
    attempt: int = 2
    project: Project | None = None
    sends_code: bool = False
    forces: bool = False
    without_files: bool = False

    @property
    def nodes(self) -> tuple[RunNode, ...]:
        """Return the nodes of all earlier attempts, node0 of the last one first."""
        return self.record.all_nodes if self.attempt > 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """The paths and the identity of a new run, or of the next attempt of a run; all folders are absolute.

    Attributes:
        run_id: the id of the run.
        run_dir: the run's folder on its nodes.
        train: the `train` folder on its nodes.
        train_here: the `train` folder on this machine.
        store: the folder of what controllers have sent to the nodes, by the hash of the content; '' without one.
        store_here: such a folder for the projects of runs that share the folders of this machine.
        started_by: the user and host that planned the run, as `user@host`.
        created: when the run was planned, in seconds since the epoch.
        root: orch's folder on other machines; '' if the ranks see the folders of this machine.
        resume: the run whose next attempt is planned, or None for a new run.
    """

    run_id: str
    run_dir: str
    train: str
    train_here: str
    started_by: str
    created: float
    store: str = ""
    store_here: str = ""
    root: str = ""
    resume: Resume | None = None


# Options whose names differ from those of their fields.
@dataclass(frozen=True, slots=True)
class UnsupportedOption:
    """An option that a target cannot use.

    Attributes:
        reason: the rest of a sentence that begins with the option.
        hint: what the user can do.
    """

    reason: str
    hint: str


NO_ARRAYS = UnsupportedOption("is for hosts and batch systems", "Start one run for each value.")


def flag(field: str) -> str:
    return FLAGS.get(field) or f"--{field.replace('_', '-')}"


def changed_fields(value: Any) -> Iterator[str]:
    """Yield the fields of a request, or of a target's options, that differ from their defaults."""
    for item in fields(value):
        if getattr(value, item.name) != item.default:
            yield item.name


def check_unsupported_options(request: TrainRequest, refuses: Mapping[str, UnsupportedOption]) -> None:
    """Check that the target can use all options of the request.

    Args:
        request: the request.
        refuses: the reason for each field that the target refuses.

    Raises:
        PlanError: naming all options that it refuses.
    """
    refused = [(flag(name), refuses[name]) for name in changed_fields(request) if name in refuses]
    check_foreign(request.options, request.on, refused)


def check_foreign(
    options: Iterable[TargetOptions], target: str | None, refused: Iterable[tuple[str, UnsupportedOption]] = ()
) -> None:
    """Raise PlanError for options of another target than the chosen one, and for those that it refuses."""
    unsupported = [*refused]
    for target_options in options:
        target_flag = f"--on {target_options.on}"
        for name in changed_fields(target_options) if target_options.on != target else ():
            hint = f"Add {target_flag}, or omit {flag(name)}."
            unsupported.append((flag(name), UnsupportedOption(f"is for {target_flag}", hint)))
    if unsupported:
        raise PlanError(
            " ".join(f"{name} {option.reason}." for name, option in unsupported),
            hint=" ".join(dict.fromkeys(option.hint for _, option in unsupported)),
        )
