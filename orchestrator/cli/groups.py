"""Commands whose options are the fields of dataclasses, shown in named panels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from orchestrator.cli.options import said_by
from orchestrator.planning.refusal import flag

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Options that make one frozen dataclass. `panels`: title -> field -> what the help says of it;
    `fixed`: fields that the command decides itself. All others keep their defaults."""

    kind: Callable[..., Any]
    panels: Mapping[str, Mapping[str, ParameterInfo]]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> list[inspect.Parameter]:
        known, kinds = known_fields(self.kind), get_type_hints(self.kind)
        return [
            parameter(known[name], kinds[name], titled(info, name, panel))
            for panel, options in self.panels.items()
            for name, info in options.items()
        ]

    def make(self, values: dict[str, Any]) -> Any:
        """The dataclass; its values are taken out of `values`."""
        names = [name for options in self.panels.values() for name in options]
        found = {name: frozen(values.pop(name)) for name in names}
        given = {name: value for name, value in found.items() if value is not None}
        return self.kind(**given, **self.fixed)


def known_fields(kind: Any) -> dict[str, Field[Any]]:
    return {one.name: one for one in fields(kind)}


def titled(info: ParameterInfo, name: str, panel: str) -> ParameterInfo:
    """With its panel, and with its flag where it names none itself."""
    info = copy(info)
    if isinstance(info, OptionInfo):
        info.rich_help_panel = panel
        if info.default is ... and not info.param_decls:
            info.param_decls = (flag(name),)
    return info


def parameter(one: Field[Any], kind: Any, info: ParameterInfo) -> inspect.Parameter:
    default = one.default
    if default is MISSING:
        default = inspect.Parameter.empty
    elif default == ():
        default = None
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[shown(kind), info]
    )


def shown(kind: Any) -> Any:
    """The type of a field as the command line takes it: lists for tuples, files by their paths."""
    if get_origin(kind) is tuple:
        return list[shown(get_args(kind)[0])] | None  # type: ignore[misc]
    return Path if kind is PurePath else kind


def frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def command(function: Callable[..., None], **groups: Group) -> Callable[..., None]:
    """The function as a command: parameters that a group makes become the group's options, and
    `context` is click's."""

    def run(**values: Any) -> None:
        made = {name: group.make(values) for name, group in groups.items()}
        function(**made, **values)

    own = inspect.signature(function, eval_str=True).parameters.values()
    kept = [
        one.replace(kind=one.KEYWORD_ONLY) for one in own if one.name not in groups and one.kind is not one.VAR_KEYWORD
    ]
    options = [one for group in groups.values() for one in group.parameters()]
    both = [*kept, *options]
    run.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in both}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def without_environment(value: Value, context: typer.Context) -> Value:
    """The dataclass without what only the environment says."""
    names = [
        one.name
        for one in fields(value)  # type: ignore[arg-type]
        if said_by(context, one.name) == "ENVIRONMENT"
    ]
    known = known_fields(value)
    return replace(value, **{name: known[name].default for name in names})  # type: ignore[type-var]
