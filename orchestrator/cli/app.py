"""Commands with uniform help and error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from orchestrator.cli import defaults
from orchestrator.errors import OrchError, RequestError, describe_invalid

SCRIPT_ARGUMENTS = "script_args"  # parameter of commands that pass arguments on to a script
RECIPE = "recipe"
COMMAND = "command"  # parameter of commands that run a program
SHOW = "show"  # subcommand that shows one object of a group
HAS_DOUBLE_DASH = "orch.has_double_dash"  # key in context.meta: whether the arguments contain `--`
SELECTED_TARGET = "orch.selected_target"  # key in context.meta: the value of --on
MIN_SIMILARITY = 0.8  # of an unknown option that may be the script's to one that is suggested, from 0 to 1
# Messages of typer and click.
UNEXPECTED_ARGUMENTS = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)\.?")
MISSING_ARGUMENT = re.compile(r"Missing argument '([^']+)'")
INVALID_VALUE = re.compile(r"Invalid value for '?([^']+?)'?: (.*)")
TRAIN_EXAMPLES = (
    "Examples: orch train bert-qa, or orch train script.py -- --epochs 3. `orch recipes` lists the "
    "recipes, `orch train --help` the options."
)
DOUBLE_DASH_HINT = "Script arguments go after --: orch train script.py -- --epochs 3."


class NamedArgument(TyperArgument):
    """An argument that the help shows by its name, without brackets or a type."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        name = self.metavar or self.name or ""
        ellipsis = "..." if self.nargs != 1 else ""
        return [f"{name if self.required else f'[{name}]'}{ellipsis}"]


def format_parameters(parameters: list[Any]) -> list[Any]:
    """Simplify how the help shows these parameters.

    They are changed in place, because click looks up the same objects in its parsing results.
    """
    for parameter in parameters:
        if isinstance(parameter, TyperArgument):
            parameter.__class__ = NamedArgument
        elif isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""  # a flag takes no value
    return parameters


def target_in(arguments: Sequence[str]) -> str | None:
    """Return the last value of --on before `--`, or None."""
    target = None
    for argument, following in zip(arguments, [*arguments, None][1:], strict=True):
        if argument == "--":
            break
        if argument == "--on":
            target = following
        elif argument.startswith("--on="):
            target = argument.removeprefix("--on=")
    return target


class Command(TyperCommand):
    """A command that reports usage errors as RequestError."""

    def get_params(self, ctx: Any) -> list[Any]:
        return format_parameters(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with one line in place of the options of each target that is not selected."""
        from orchestrator.targets import registry

        targets = {entry.title: entry.options.on for entry in registry.entries().values()}
        hidden: dict[str, list[Any]] = {}
        for parameter in self.params:
            panel = getattr(parameter, "rich_help_panel", None)
            if panel in targets and targets[panel] != ctx.meta.get(SELECTED_TARGET):
                hidden.setdefault(panel, []).append(parameter)
        epilog = self.epilog
        lines = [
            f"{panel} ({', '.join(option.opts[0] for option in options)}): "
            f"{ctx.command_path} --on {targets[panel]} --help"
            for panel, options in hidden.items()
        ]
        self.epilog = "\n\n".join(filter(None, (*lines, epilog)))
        self._set_hidden(hidden, True)
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = epilog
            self._set_hidden(hidden, False)

    @staticmethod
    def _set_hidden(panels: dict[str, list[Any]], hidden: bool) -> None:
        for options in panels.values():
            for option in options:
                option.hidden = hidden

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            RequestError: for a usage error; for an unknown option that may belong to the script, it
                explains `--`.
        """
        from orchestrator.targets.registry import check_name

        ctx.meta[HAS_DOUBLE_DASH] = "--" in args
        ctx.meta[SELECTED_TARGET] = target_in(args)
        defaults.set_defaults(ctx, args)
        try:
            remaining = super().parse_args(ctx, args)
        except Exception as error:  # its class is typer's or click's, by their version
            if hasattr(error, "possibilities") and any("--on" in parameter.opts for parameter in self.params):
                check_name(ctx.meta[SELECTED_TARGET])  # the options of a target that cannot be used are unknown
            if all(parameter.name != SCRIPT_ARGUMENTS for parameter in self.params):
                raise_usage_error(ctx, error)
            if getattr(getattr(error, "param", None), "name", "") == RECIPE:
                raise RequestError("Name a recipe or a script to train.", hint=TRAIN_EXAMPLES) from None
            if not hasattr(error, "possibilities"):
                raise_usage_error(ctx, error)
            hint = " ".join([DOUBLE_DASH_HINT, *suggest_options(error, MIN_SIMILARITY)])
            raise RequestError(describe_usage_error(error), hint=hint) from None
        defaults.apply_precedence(ctx)
        return remaining

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors name the options that a pyproject.toml sets."""
        try:
            return super().invoke(ctx)
        except OrchError as error:
            if isinstance(error, RequestError):
                error.hint = " ".join(filter(None, [error.hint, defaults.describe_table(ctx)]))
            raise


def raise_usage_error(ctx: Any, error: Exception) -> NoReturn:
    """Raise a usage error in the form of all other errors.

    Raises:
        RequestError: if typer would print the error in a box.
    """
    is_help = type(error).__name__ == "NoArgsIsHelpError"
    if is_help or not hasattr(error, "format_message"):
        raise error
    help_hint = f"`{ctx.command_path} --help` lists the options."
    if hasattr(error, "possibilities") and any(parameter.name == COMMAND for parameter in ctx.command.params):
        help_hint = "The options of the command go after --: orch exec inventory/prod -- ls -l."
    raise RequestError(describe_usage_error(error), hint=next(iter(suggest_options(error)), help_hint)) from None


def suggest_options(error: Any, min_similarity: float = 0.6) -> list[str]:
    """Return a question about the option that is most similar to an unknown one, if there is any."""
    possibilities = {*(getattr(error, "possibilities", None) or ())} - {"--help"}
    similar = difflib.get_close_matches(getattr(error, "option_name", ""), possibilities, 1, min_similarity)
    return [f"Did you mean {name}?" for name in similar]


def describe_usage_error(error: Any) -> str:
    """Return a usage error of typer as a sentence like those of other errors."""
    if hasattr(error, "possibilities"):
        return f"No such option: {error.option_name}."
    message = " ".join(error.format_message().split())
    if values := UNEXPECTED_ARGUMENTS.fullmatch(message):
        names = values[1].split()
        return f"Unexpected argument{'s' * (len(names) > 1)} {', '.join(map(repr, names))}."
    if missing := MISSING_ARGUMENT.match(message):
        return f"Missing argument {missing[1]}."
    if invalid := INVALID_VALUE.fullmatch(message):
        message = f"{invalid[1]}: {describe_invalid(invalid[2])}"
    return f"{message.rstrip('.')}."


class CommandGroup(TyperGroup):
    """A group of commands that reports usage errors as RequestError."""

    def get_params(self, ctx: Any) -> list[Any]:
        return format_parameters(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise RequestError for an option that the group does not know."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # its class is typer's or click's, by their version
            raise_usage_error(ctx, error)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command.

        Raises:
            RequestError: if there is no such command.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            similar = difflib.get_close_matches(cmd_name, self.commands, n=1)
            if similar:
                hint = f"Did you mean '{similar[0]}'?"
            elif self.invoke_without_command and cmd_name in ("list", "ls"):
                hint = f"`{ctx.command_path}` lists them."
            elif SHOW in self.commands:  # the name of an object may stand in place of the command
                hint = f"To show one: {ctx.command_path} {SHOW} {cmd_name}"
            else:
                hint = f"`{ctx.command_path} --help` lists the commands."
            raise RequestError(f"No such command: {ctx.command_path} {cmd_name}.", hint=hint)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name.

        Raises:
            RequestError: if they name none.
        """
        if not (ctx._protected_args or ctx.args or self.invoke_without_command):
            raise RequestError(
                f"Missing command after {ctx.command_path}.", hint=f"`{ctx.command_path} --help` lists the commands."
            )
        return super().invoke(ctx)


class App(typer.Typer):
    """A Typer application whose commands are Command and CommandGroup."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=CommandGroup, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **settings)
