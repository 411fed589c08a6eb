"""Typer's commands, with errors in the form of all others and a help that fits on a screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.cli import defaults
from orchestrator.errors import OrchError, RequestError
from orchestrator.targets import registry

SCRIPT_ARGUMENTS = "script_args"  # parameter of commands that pass arguments on to a script
RECIPE = "recipe"
COMMAND = "command"  # parameter of commands that run a program
HAS_DOUBLE_DASH = "orch.has_double_dash"  # key in context.meta: whether the arguments contain `--`
ARGUMENTS = "orch.arguments"  # key in context.meta: the command line
SHOWS_ALL = "orch.shows_all"  # key in context.meta: whether the help shows all options
HELP_ALL = "--help-all"
# Options of `orch train` that most people use. --help shows only these and those of the selected target.
COMMON = {
    *("recipe", "script_args", "name", "preset", "settings", "array", "requirements", "packages", "env", "venv"),
    *("on", "inventory", "nodes", "wait_for_cores", "ppn", "launcher", "backend", "precision", "max_restarts", "image"),
    *("wait", "dry_run"),
}
TRAIN_EXAMPLES = (
    "Examples: orch train bert-qa, or orch train script.py -- --epochs 3. `orch recipes` lists the "
    "recipes, `orch train --help` the options."
)
DOUBLE_DASH_HINT = "Script arguments go after --: orch train script.py -- --epochs 3."


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
    """A command whose options have defaults in a pyproject.toml."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[HAS_DOUBLE_DASH] = "--" in args
        ctx.meta[ARGUMENTS] = [*args]
        ctx.meta[SHOWS_ALL] = HELP_ALL in args
        defaults.set_defaults(ctx, args)
        remaining = super().parse_args(ctx, args)
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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: without --help-all only common options and those of the selected target."""
        brief = self
        if HELP_ALL in ctx.help_option_names and not ctx.meta.get(SHOWS_ALL):
            brief, target = copy(self), target_in(ctx.meta[ARGUMENTS])
            brief.params = [parameter for parameter in self.params if is_common(parameter, target)]
            more = [f"All options: {ctx.command_path} {HELP_ALL}", *help_of_targets(ctx, target)]
            brief.epilog = "\n\n".join(filter(None, (*more, self.epilog)))
        super(Command, brief).format_help(ctx, formatter)


def is_common(parameter: Any, target: str | None) -> bool:
    """Return whether --help shows an option: one of COMMON, or of the selected target."""
    panel = getattr(parameter, "rich_help_panel", None)
    return parameter.name in COMMON or (panel is not None and title_of(target) == panel)


def title_of(target: str | None) -> str | None:
    """Return the panel of a target's options."""
    return next((entry.title for entry in registry.entries().values() if entry.options.on == target), None)


def help_of_targets(ctx: Any, selected_target: str | None) -> list[str]:
    """Return a line about the options of each target that is not selected."""
    targets = {entry.options.on: entry.title for entry in registry.entries().values()}
    return [
        f"{title}: {ctx.command_path} --on {target} --help"
        for target, title in targets.items()
        if target != selected_target
    ]


class CommandGroup(TyperGroup):
    """A group of commands whose usage errors are RequestErrors."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the command line and exit with its exit code.

        Raises:
            RequestError: for a usage error.
        """
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            if getattr(error, "ctx", None) is None or not hasattr(error, "format_message"):
                raise
            hint = hint_of(error, error.ctx)  # type: ignore[attr-defined]
            raise RequestError(" ".join(error.format_message().split()), hint=hint) from None
        sys.exit(code or 0)


def hint_of(error: Any, ctx: Any) -> str:
    """Return what to do about a usage error of typer.

    Raises:
        RequestError: if an option is unknown because its target cannot be used.
    """
    names = {parameter.name for parameter in ctx.command.params}
    if hasattr(error, "possibilities"):  # an unknown option
        if "on" in names:
            registry.find_target(target_in(ctx.meta[ARGUMENTS]))
        if SCRIPT_ARGUMENTS in names:
            return DOUBLE_DASH_HINT
        if COMMAND in names:
            return "The options of the command go after --: orch exec inventory/prod -- ls -l."
    if getattr(getattr(error, "param", None), "name", "") == RECIPE:
        return TRAIN_EXAMPLES
    if "show" in getattr(ctx.command, "commands", ()):
        return f"To show one: {ctx.command_path} show NAME. `{ctx.command_path} --help` lists the commands."
    return f"`{ctx.command_path} --help` lists what it takes."


class App(typer.Typer):
    """A Typer application whose commands are Command and CommandGroup."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=CommandGroup, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **settings)
