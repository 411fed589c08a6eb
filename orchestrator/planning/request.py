"""The request of the command line, and the unfinished run whose next attempt it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
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


OPTION, PANEL, FLAGS, FOR_SHARED_FOLDER = "option", "panel", "flags", "for_shared_folder"  # in the metadata of a field
ARGUMENTS, TRAINING, NODES, RANKS = "Arguments", "What", "Where", "Ranks"  # panels of the help
PRECISION, RESTARTS, IMAGE = "Precision", "Restarts", "Image"
LAUNCHER_NAMES = ("mpirun", "torchrun", "accelerate", "mpirun-accelerate")  # copied: importing LAUNCHERS is slow


def option(
    default: Any = None,
    *,
    panel: str = "",
    flags: tuple[str, ...] = (),
    for_shared_folder: bool = False,
    **arguments: Any,
) -> Any:
    """Return a field that the command line, the Python interface and [tool.orch] have as an option.

    Args:
        default: the value without the option; MISSING for an argument that is required.
        panel: the heading in the help of the option and of those after it; a target's options have that of the target.
        flags: its flags, if they do not follow from the name of the field.
        for_shared_folder: whether `orch provision --on` has this option of a target, too.
        arguments: what typer.Option takes, such as `help`, `metavar` and `envvar`.
    """
    metadata = {OPTION: arguments, PANEL: panel, FLAGS: flags, FOR_SHARED_FOLDER: for_shared_folder}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The options of a command line as the user gave them: the only place that declares them.

    An option that was omitted is None, files and folders are names, settings are KEY=VALUE. Every target uses or
    refuses every field.
    """

    recipe: str = option(
        MISSING, panel=ARGUMENTS, metavar="RECIPE_OR_SCRIPT", help="Recipe (`orch recipes` lists them) or script."
    )
    script_args: tuple[str, ...] = option((), metavar="-- SCRIPT ARGS", help="Arguments for the script.")
    module: bool = option(
        False, panel=TRAINING, flags=("--module", "-m"), help="Run RECIPE_OR_SCRIPT as a module, like `python -m`."
    )
    name: str | None = option(metavar="NAME", help="Name of the run, which commands take in place of its ID.")
    preset: str | None = option(metavar="NAME", help="Named set of settings; `orch recipes` lists them.")
    settings: tuple[str, ...] = option(
        (), flags=("--set",), metavar="KEY=VALUE", help="Setting of the recipe (`orch recipes show`); may be repeated."
    )
    array: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE,VALUE",
        help="One run per value, or (@FILE) per line; repeat for all combinations. %N: at most N at a time.",
    )
    array_sample: int | None = option(metavar="N", help="Start only N combinations of --array, drawn at random.")
    recipe_path: tuple[PurePath, ...] = option(
        (), envvar="ORCH_RECIPE_PATH", metavar="FOLDER", help="Folder of a recipe or of recipes; may be repeated."
    )
    project: str | None = option(
        metavar="FOLDER|none",
        help="Folder sent with your own script. Default: its git repository or folder; none: only the script.",
    )
    project_limit: int = option(PROJECT_MEGABYTES, metavar="MB", help="Maximum size of the project.")
    requirements: str | None = option(
        metavar="FILE|none",
        help="Packages to add to the stack, in a file. Default: those of the script or its pyproject.toml.",
    )
    extra: tuple[str, ...] = option((), metavar="NAME", help="Extra of the pyproject.toml; may be repeated.")
    packages: tuple[str, ...] = option(
        (), flags=("--with",), metavar="PACKAGE", help="Further package, such as einops>=0.8; may be repeated."
    )
    env: tuple[str, ...] = option(
        (),
        metavar="NAME|NAME=VALUE",
        help="Variable of the ranks; alone, that of this shell; may be repeated. For all runs: orch_env.",
    )
    env_file: PurePath | None = option(metavar="FILE", help="File with such variables, one in each line.")
    stack: str = option("current", metavar="NAME", help="Stack (set of versions) to use; `orch stacks` lists them.")
    python: str | None = option(
        metavar="PATH",
        help="Run the ranks on this Python of the nodes (conda, uv, venv), which has torch, not on the stack's.",
    )
    on: str | None = None  # its option names the targets, which packages can add
    inventory: str = option(
        "local",
        panel=NODES,
        envvar="ORCH_INVENTORY",
        metavar="INVENTORY",
        help="Ansible inventory of the cluster; `orch init` creates one. local: this machine.",
    )
    nodes: Nodes | None = option(
        metavar="N|PATTERN",
        parser=parse_nodes,
        help="Number of nodes, or a pattern: node[1-3] or a group. Default: all.",
    )
    exclude: str | None = option(metavar="PATTERN", help="Nodes to exclude: a pattern as for --nodes.")
    wait_for_cores: bool = option(False, help="Wait until other runs have released their cores.")
    ppn: int | None = option(
        panel=RANKS,
        metavar="N|auto",
        parser=parse_ppn,
        help="Ranks per node. Default: auto, one per NUMA node, or as many as `orch bench` found to be faster.",
    )
    launcher: str | None = option(
        metavar="NAME", help=f"Program that starts the ranks: {', '.join(LAUNCHER_NAMES)}; the first by default."
    )
    mpi: str | None = option(metavar="NAME", help="intel, mpich or openmpi. Default: orch_mpi, or the stack's MPI.")
    accelerate_config: str | None = option(metavar="FILE", help="Configuration of accelerate, as far as it applies.")
    backend: str | None = option(
        metavar="NAME",
        help="Process-group backend. Default: the first of the stack, or what `orch bench` found to be faster.",
    )
    ccl_workers: int = option(0, metavar="N", help="Cores per rank that oneCCL uses for communication only.")
    fabric: str | None = option(
        metavar="NAME",
        help="Network for MPI and oneCCL. Default: auto, the fastest that `orch provision` has verified, or tcp.",
    )
    precision: str = option(
        AUTO,
        panel=PRECISION,
        metavar="auto|bf16|fp32",
        help="Precision of a recipe. Default: auto, bf16 if all nodes have instructions for it, otherwise fp32.",
    )
    allow_slow_bf16: bool = option(False, help="Emulate BF16 without its instructions; 10 times slower than fp32.")
    ipex: bool = option(False, help="Use the Intel Extension for PyTorch (IPEX), on stacks that have it.")
    kernels: str = option(
        AUTO, metavar="auto|torch", help="Dropout, attention and products on CPUs by orch's kernels or torch's."
    )
    stall_timeout: float = option(
        STALL_SECONDS,
        panel=RESTARTS,
        metavar="SECONDS",
        help="Stop a run that makes no progress (event, collective, step or log line) for this long; 0: never.",
    )
    max_restarts: int = option(0, metavar="N", help="Restarts after failures, from the newest checkpoint.")
    spare_nodes: int = option(
        0,
        metavar="K",
        help="Reserve K nodes, the next of the inventory or the last of --nodes, that replace failed ones.",
    )
    min_nodes: int = option(
        0, metavar="K", help="Restart with as few as K nodes after node failures; torchrun: --nnodes K:N."
    )
    stop_on_nan: bool = option(False, help="Stop the run when the loss has been NaN in 10 backward passes in a row.")
    image: str | None = option(
        panel=IMAGE,
        metavar="IMAGE",
        help="Run the ranks in this image: of Docker, of pods, or a .sif file or folder of Apptainer in jobs.",
    )
    image_options: tuple[str, ...] = option(
        (),
        flags=("--image-option",),
        metavar="KEY=VALUE",
        help="Setting of the containers, such as mounts; may be repeated. For all runs: orch_docker.",
    )
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
        first_ranks: the number of ranks at the first start, or 0 if it is unknown.
        project: the files that were sent with a script, or None.
        sends_code: whether to bring the run's copy of the project up to date.
        forces: whether to continue although data or settings have changed.
        without_files: whether to continue without the files of the last node0.
    """

    record: RunRecord
    state: str
    attempt: int = 2
    first_ranks: int = 0
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
NAMES = {item.name: item.metadata[FLAGS][0] for item in fields(TrainRequest) if item.metadata.get(FLAGS)}


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
    return NAMES.get(field) or f"--{field.replace('_', '-')}"


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
        problem = " ".join(f"{name} {option.reason}." for name, option in unsupported)
        raise PlanError(problem, hint=" ".join(dict.fromkeys(option.hint for _, option in unsupported)))
