"""Commands whose options are the fields of dataclasses, shown in named panels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from orchestrator import load
from orchestrator.planning.request import ARGUMENTS, FLAGS, OPTION, PANEL, TRAINING, TrainRequest, flag, option

Value = TypeVar("Value")


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
                info = copy(declared)
                if isinstance(info, OptionInfo):
                    info.rich_help_panel = panel
                    if info.default is ... and not info.param_decls:
                        info.param_decls = (flag(name),)
                default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
                # typer also rejects some types of values that it does not parse.
                kind = Any if info.parser else typer_type(kinds[name])
                parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])
                parameters.append(parameter.replace(default=None if default == () else default))
        return parameters

    def make(self, values: dict[str, Any]) -> Any:
        """Return the dataclass, removing its fields from `values`."""
        names = [name for options in self.panels.values() for name in options]
        options = {name: values.pop(name) for name in names}
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if value is not None
        }
        return self.kind(**arguments, **self.fixed)


def panels_of(kind: Any, **completions: Callable[[str], list[str]]) -> dict[str, dict[str, ParameterInfo]]:
    """Return the options that a dataclass declares, by their panels and fields.

    Args:
        kind: the dataclass, whose fields are made with `option`.
        completions: what completes the values of some options, by the names of the fields.
    """
    panels: dict[str, dict[str, ParameterInfo]] = {}
    for item in fields(kind):
        if OPTION in item.metadata:
            make = typer.Argument if item.metadata[PANEL] == ARGUMENTS else typer.Option
            arguments = {**item.metadata[OPTION], "autocompletion": completions.get(item.name)}
            panels.setdefault(item.metadata[PANEL], {})[item.name] = make(*item.metadata[FLAGS], **arguments)
    return panels


def typer_type(kind: Any) -> Any:
    """Return the type that typer needs for a field: list for tuple, Path for PurePath."""
    if get_origin(kind) is tuple:
        return list[typer_type(get_args(kind)[0])] | None  # type: ignore[misc]
    return Path if kind is PurePath else kind


def command(function: Callable[..., None], **groups: Group) -> Callable[..., None]:
    """Return a function as a command.

    Args:
        function: the function. Its other parameters stay as they are.
        groups: parameters of the function that are replaced by the options of a group.
    """

    def run(**values: Any) -> None:
        group_values = {name: group.make(values) for name, group in groups.items()}
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


def complete_recipes(incomplete: str) -> list[str]:
    return [name for name in load.recipe_folders() if name.startswith(incomplete)]


def complete_stacks(incomplete: str) -> list[str]:
    return [name for name in load.stack_names() if name.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The virtual environment of the ranks."""

    venv: str | None = option(
        None,
        panel=TRAINING,
        metavar="FOLDER",
        help="Run the ranks in this virtual environment, which the nodes have already: --python FOLDER/bin/python.",
    )


PANELS = panels_of(TrainRequest, recipe=complete_recipes, stack=complete_stacks)
