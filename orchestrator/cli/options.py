"""Options that several commands share, and commands whose options are the fields of dataclasses."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from orchestrator import load
from orchestrator.errors import OrchError, RequestError
from orchestrator.load.definitions import stack_names
from orchestrator.planning.request import ARGUMENTS, FLAGS, OPTION, PANEL, TRAINING, TrainRequest, flag
from orchestrator.runs import store
from orchestrator.screen import print_text

RUNS_DIR = Path("runs")


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids and the names of the recorded runs."""
    names: Iterable[str | None] = ()
    with contextlib.suppress(OrchError):  # an error would be printed into the command line
        folders = (context.params.get("runs_dir") for context in (ctx, ctx.parent) if context)
        base = next(filter(None, folders), RUNS_DIR)
        runs = [run.record for run in reversed(store.recorded(Path(base)).runs)]
        names = dict.fromkeys(name for run in runs for name in (run.run_id, run.name))
    return [name for name in names if name and name.startswith(incomplete)]


RunName = Annotated[
    str, typer.Argument(metavar="ID|last", help="ID or name of a run; last: the newest.", autocompletion=complete_runs)
]
UnfinishedRun = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="ID or name of a run, or of an array for all of its unfinished runs; `orch runs` lists the runs.",
        show_default="the newest unfinished run",
        autocompletion=complete_runs,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
USER_PACKAGES = typer.Option(
    "--requirements", metavar="FILE", help="Packages to add: requirements file, pyproject.toml or script with metadata."
)
UserPackages = Annotated[str | None, USER_PACKAGES]
# Its own checks name the owner of a folder that cannot be read.
RUNS_FOLDER = typer.Option(envvar="ORCH_RUNS_DIR", metavar="FOLDER", readable=False, help="Folder of the run folders.")
RunsDir = Annotated[Path, RUNS_FOLDER]
OfInventory = Annotated[
    str | None,
    typer.Option("--inventory", metavar="INVENTORY", help="Query its nodes; also finds runs of other machines."),
]
SHOW = typer.Option("--show", metavar="RANK|all|none", help="Ranks whose output is shown.")
OUTPUT: Mapping[str, ParameterInfo] = {
    "runs_dir": RUNS_FOLDER,
    "wait": typer.Option("--wait/--detach", help="Watch the run until it ends, or only start it."),
    "show": SHOW,
    "verbose": typer.Option("--verbose", "-v", help="Print all decisions with their reasons."),
    "dry_run": typer.Option(help="Print the decisions, files and commands of the plan, without running it."),
    "format": typer.Option("-o", metavar="sh|yaml", help="Format of --dry-run: all as a script or a manifest."),
    "as_json": typer.Option("--json", help="Print one JSON object instead of text."),
}


def source_name(context: typer.Context, name: str) -> str:
    """Return the source of a parameter's value, such as COMMANDLINE, ENVIRONMENT or DEFAULT."""
    source = context.get_parameter_source(name)
    return source.name if source else ""


def has_subcommand(context: typer.Context, *read: str) -> bool:
    """Return whether a subcommand follows, which does not ignore an option before it.

    Args:
        context: context of the command group.
        read: parameters of the group that its subcommands read.

    Raises:
        RequestError: if there is such an option.
    """
    subcommand = context.invoked_subcommand
    for parameter in context.command.params if subcommand else ():
        if parameter.name and parameter.name not in read and source_name(context, parameter.name) == "COMMANDLINE":
            raise RequestError.about("option-before-subcommand", parameter=parameter, context=context)
    return subcommand is not None


def print_error(line: str) -> None:
    """Print a line on standard error."""
    print_text(line, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Options for what is printed about a run, and whether it is started."""

    runs_dir: Path = RUNS_DIR
    wait: bool = True  # watch the run until it ends
    show: str = "0"  # the rank whose lines are shown, or all, or none
    verbose: bool = False
    dry_run: bool = False
    format: Literal["sh", "yaml"] | None = None  # the value of -o
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Options that set the fields of a frozen dataclass. Other fields keep their defaults."""

    kind: Any  # the dataclass
    panels: Mapping[str, Mapping[str, ParameterInfo]]  # title -> field -> option
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields that the command sets itself

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a function."""
        defaults, kinds = {item.name: item.default for item in fields(self.kind)}, get_type_hints(self.kind)
        parameters = []
        for panel, options in self.panels.items():
            for name, declared in options.items():
                info, kind, default = copy(declared), kinds[name], defaults[name]
                if isinstance(info, OptionInfo):
                    info.rich_help_panel = panel
                    if info.default is ... and not info.param_decls:
                        info.param_decls = (flag(name),)
                if info.parser:  # typer also rejects some types of values that it does not parse
                    kind = Any
                elif get_origin(kind) is tuple:
                    value_type = Path if get_args(kind)[0] is PurePath else get_args(kind)[0]
                    kind, default = list[value_type] | None, default or None  # type: ignore[valid-type]
                parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])
                parameters.append(parameter if default is MISSING else parameter.replace(default=default))
        return parameters


def make_command(function: Callable[..., None], **groups: Group) -> Callable[..., None]:
    """Return a function as a command.

    Args:
        function: the function. Its other parameters stay as they are.
        groups: parameters of the function that are replaced by the options of a group.
    """

    def run(**values: Any) -> None:
        group_values = {}
        for parameter, group in groups.items():
            options = {name: values.pop(name) for panel in group.panels.values() for name in panel}
            settings = {name: value for name, value in options.items() if value is not None}
            arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
            group_values[parameter] = group.kind(**arguments, **group.fixed)
        function(**group_values, **values)

    parameters = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.name not in groups and parameter.kind is not parameter.VAR_KEYWORD
    ]
    for group in groups.values():
        parameters += group.parameters()
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def completer(find_names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes names."""
    return lambda incomplete: [name for name in find_names() if name.startswith(incomplete)]


def preset_names() -> list[str]:
    return sorted({preset for recipe in load.recipe_folders() for preset in load.recipe(recipe).presets})


complete_stacks = completer(stack_names)
COMPLETIONS = {"preset": completer(preset_names), "recipe": completer(load.recipe_folders), "stack": complete_stacks}
# The options that TrainRequest declares, by their panels and fields.
PANELS: dict[str, dict[str, ParameterInfo]] = {}
for request_field in fields(TrainRequest):
    if OPTION in request_field.metadata:
        panel, flags, arguments = (request_field.metadata[key] for key in (PANEL, FLAGS, OPTION))
        panel = panel or [*PANELS][-1]  # that of the option before
        make = typer.Argument if panel == ARGUMENTS else typer.Option
        completion = COMPLETIONS.get(request_field.name)
        PANELS.setdefault(panel, {})[request_field.name] = make(*flags, **arguments, autocompletion=completion)
RecipePath = Annotated[list[Path] | None, PANELS[TRAINING]["recipe_path"]]
