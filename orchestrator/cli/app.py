"""Commands whose help has one shape: a name for each value, and nothing beside a flag."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from orchestrator.errors import RequestError

SCRIPT = "script_args"
RECIPE = "recipe"
SHOWS = "show"
DASHES = "orch.dashes"  # in the context: whether there was a `--`
LIKE_A_TYPO = 0.8  # how alike an option and a known one are, of 1
WHAT_TO_TRAIN = (
    "orch train bert-qa, or orch train script.py -- --its --flags. `orch recipes` lists the "
    "recipes, `orch train --help` the options."
)
AFTER = "Options of a script go after --: orch train script.py -- --its --flags."


class Named(TyperArgument):
    """An argument whose name says what it is, without brackets of its own or a type beside it."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        name = self.metavar or self.name or ""
        more = "..." if self.nargs != 1 else ""
        return [f"{name if self.required else f'[{name}]'}{more}"]


def shape(parameters: list[Any]) -> list[Any]:
    """The same parameters: click finds them again in what was parsed."""
    for one in parameters:
        if isinstance(one, TyperArgument):
            one.__class__ = Named
        elif isinstance(one, TyperOption) and one.is_flag:
            one.metavar = ""  # a flag takes no value
    return parameters


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return shape(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises RequestError for an option that may be the script's: nobody guesses the `--`."""
        ctx.meta[DASHES] = "--" in args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # its class is typer's or click's, by their version
            if all(parameter.name != SCRIPT for parameter in self.params):
                raise_usage_error(ctx, error)
            if getattr(getattr(error, "param", None), "name", "") == RECIPE:
                raise RequestError("Name what to train: a recipe or a script.", hint=WHAT_TO_TRAIN) from None
            if not hasattr(error, "possibilities"):
                raise_usage_error(ctx, error)
            option = getattr(error, "option_name", "")
            near = difflib.get_close_matches(option, error.possibilities or (), 1, LIKE_A_TYPO)
            raise RequestError(
                f"No such option: {option}.", hint=" ".join([AFTER, *(f"Did you mean {name}?" for name in near)])
            ) from None


def raise_usage_error(ctx: Any, error: Exception) -> NoReturn:
    """Raise an error of the command line in the form of all other errors.

    Raises:
        RequestError: if it is an error that typer would print in a box of its own.
    """
    is_help = type(error).__name__ == "NoArgsIsHelpError"
    if is_help or not hasattr(error, "format_message"):
        raise error
    raise RequestError(
        f"{error.format_message().rstrip('.')}.", hint=f"`{ctx.command_path} --help` shows what it takes."
    ) from None


class Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return shape(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise RequestError for an option that the group does not know."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # its class is typer's or click's, by their version
            raise_usage_error(ctx, error)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Raise RequestError for a command that the group does not know."""
        try:
            return super().resolve_command(ctx, args)
        except RequestError:
            raise
        except Exception as error:  # its class is typer's or click's, by their version
            raise_usage_error(ctx, error)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Raises RequestError for the name of a thing where a command is due."""
        found = super().get_command(ctx, cmd_name)
        if found is None and SHOWS in self.commands and not ctx.resilient_parsing:
            near = difflib.get_close_matches(cmd_name, self.commands, n=1)
            shows = f"`{ctx.command_path} {SHOWS} {cmd_name}` shows one."
            raise RequestError(
                f"No such command: {ctx.command_path} {cmd_name}.", hint=f"Did you mean '{near[0]}'?" if near else shows
            )
        return found


class App(typer.Typer):
    """A group of commands, all of this shape."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Commands, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **settings)
