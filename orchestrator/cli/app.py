"""Typer's commands, with defaults from the environment and [tool.orch], and a help with the common options.

The command line replaces the environment, and that replaces the table [tool.orch] of a pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import typer
from pydantic_core import to_jsonable_python
from typer.core import TyperCommand, TyperGroup

from orchestrator.cli.options import RUNS_DIR, print_error, source_name
from orchestrator.errors import RequestError
from orchestrator.load.inputs import ToolOptions, tool_options
from orchestrator.model.decision import Decision
from orchestrator.model.printable import masked
from orchestrator.planning.request import TrainRequest, flag
from orchestrator.runs import store
from orchestrator.screen import CLOSED
from orchestrator.targets import registry

ORDER = ("", "DEFAULT", "DEFAULT_MAP", "ENVIRONMENT", "COMMANDLINE")
TABLE_SOURCE, ENVIRONMENT_SOURCE = "DEFAULT_MAP", "ENVIRONMENT"
TABLE_FILE = "orch.defaults_file"  # key in context.meta: the file with the table
EXCLUSIVE = (("inventory", "on"), ("inventory", "target"), ("python", "venv"))
# Options of the table that belong to its hosts: without effect if other hosts are named.
OF_HOSTS = ("nodes", "exclude", "ppn", "fabric", "mpi", "python", "spare_nodes", "min_nodes", "image", "image_options")
ARGUMENTS = "orch.arguments"  # key in context.meta: the command line
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
HELP = ("-h", "--help", HELP_ALL)


def apply_precedence(context: Any) -> None:
    """Omit defaults that do not suit an option with precedence, such as the inventory if --on is given.

    Options of other targets than the selected one are refused, but not if the environment sets them: ORCH_K8S_FILE in a
    shell profile would make all other runs fail. A run that is not recorded on this machine is looked for on the
    default inventory.
    """
    ranks = {name: ORDER.index(source_name(context, name)) for name in context.params}
    of_table, of_environment = (
        {name for name, rank in ranks.items() if ORDER[rank] == source} for source in (TABLE_SOURCE, ENVIRONMENT_SOURCE)
    )
    omitted = {
        min(names, key=ranks.__getitem__)
        for names in EXCLUSIVE
        if ranks.keys() >= {*names} and ranks[names[0]] != ranks[names[1]]
    }
    table = context.default_map or {}
    hosts = [name for name in ("inventory", "on") if ranks.get(name, 0) > ORDER.index(TABLE_SOURCE)]
    if any(context.params[name] != table.get(name) for name in hosts):
        omitted |= of_table & {*OF_HOSTS}
    if selected := [context.params[name] for name in ("on", "target") if name in ranks]:
        other_targets = [entry for entry in registry.entries().values() if entry.options.on not in selected]
        omitted |= of_environment & {field.name for entry in other_targets for field in fields(entry.options)}
    for name in omitted & (of_table | of_environment):
        context.params[name] = None
        context.set_parameter_source(name, type(context.get_parameter_source(name)).DEFAULT)
    if {"run", "inventory"} <= ranks.keys() and context.params["inventory"] is None:
        context.params["inventory"] = inventory_of_unknown_run(context)


def inventory_of_unknown_run(context: Any) -> str | None:
    """Return the default inventory if the id or name of a run is given that is not recorded on this machine."""
    run, folder = context.params["run"], Path(context.params.get("runs_dir") or context.obj or RUNS_DIR)
    if run == "last" or any(path.name.startswith(run) for path in folder.glob("*")):
        return None
    if any(recorded.record.name == run for recorded in store.recorded(folder).runs):
        return None
    return os.environ.get("ORCH_INVENTORY") or tool_options().values.get("inventory")


def describe_table(context: Any) -> str:
    """Return the options of a command and its group that the table sets, as a sentence; empty without any."""
    names = [
        flag(name)
        for owner in filter(None, (context, context.parent))
        for name in owner.default_map or {}
        if source_name(owner, name) == TABLE_SOURCE
    ]
    return f"[tool.orch] of {context.meta[TABLE_FILE]} sets {', '.join(names)}." if names else ""


def with_defaults(request: TrainRequest, context: Any) -> TrainRequest:
    """Return the request with decisions about its defaults, and without those that its target refuses."""
    refuses = registry.find_target(request.on).refuses
    field_defaults: dict[str, Any] = {item.name: item.default for item in fields(request)}
    values: dict[str, list[str]] = {}
    refused: dict[str, Any] = {}
    table = f"[tool.orch] of {context.meta.get(TABLE_FILE)}"
    for parameter in context.command.params:
        name, source = parameter.name, source_name(context, parameter.name)
        if source not in (TABLE_SOURCE, ENVIRONMENT_SOURCE):
            continue
        source = table if source == TABLE_SOURCE else str(parameter.envvar)
        if name in field_defaults and name in refuses:
            refused[name] = field_defaults[name]
            print_error(f"note: {flag(name)} ({source}) has no effect with --on {request.on}")
        elif name in field_defaults:
            value = getattr(request, name)
            text = " ".join(masked(tuple(map(str, value)))) if isinstance(value, tuple) else str(value)
            values.setdefault(source, []).append(f"{flag(name)} {text}")
    decisions = tuple(Decision("defaults", ", ".join(texts), source) for source, texts in values.items())
    return replace(request, **refused, defaults=decisions)


def target_in(arguments: Sequence[str]) -> str | None:
    """Return the last value of --on before `--`, or None."""
    parts = [part for argument in takewhile("--".__ne__, arguments) for part in argument.split("=", 1)]
    return next((target for target, option in pairwise(parts[::-1]) if option == "--on"), None)


def set_table_defaults(command: Any, ctx: Any, args: Sequence[str]) -> None:
    """Replace the defaults of a command's options by those of the table.

    `orch train` and `orch data prepare` have all options of the table, other commands and groups the inventory if they
    need one, and the folder of the runs.
    """
    variables = {parameter.name: parameter.envvar for parameter in command.params}
    trains = "recipe" in variables or "inputs" in variables
    # A command that needs an inventory also reads it from a variable.
    names = {name for name, variable in variables.items() if trains or (variable and name in ("inventory", "runs_dir"))}
    shows_help = any(argument in HELP for argument in args)
    if names and not shows_help and (table := tool_options_of(ctx)).values:
        ctx.meta[TABLE_FILE] = table.path
        ctx.default_map = {
            name: to_jsonable_python(value, fallback=str) for name, value in table.values.items() if name in names
        }


def tool_options_of(ctx: Any) -> ToolOptions:
    """Return the options of the table; without an error while the shell completes a command line.

    Raises:
        RequestError: if the table cannot be used.
    """
    try:
        return tool_options()
    except RequestError:
        if ctx.resilient_parsing:
            return ToolOptions()
        raise


class Command(TyperCommand):
    """A command whose options have defaults in a pyproject.toml."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after the table has replaced the defaults of the options."""
        ctx.meta[ARGUMENTS] = [*args]
        set_table_defaults(self, ctx, args)
        try:
            remaining = super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "format_message") and getattr(error, "ctx", None) is None:  # a value is missing
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        apply_precedence(ctx)
        return remaining

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors name the options that a pyproject.toml sets."""
        try:
            return super().invoke(ctx)
        except RequestError as error:
            error.hint = " ".join(filter(None, [error.hint, describe_table(ctx)]))
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: without --help-all only common options and those of the selected target."""
        brief = self
        if HELP_ALL in ctx.help_option_names and HELP_ALL not in ctx.meta[ARGUMENTS]:
            brief, titles = copy(self), {entry.options.on: entry.title for entry in registry.entries().values()}
            target_panel = titles.pop(target_in(ctx.meta[ARGUMENTS]) or "", "")
            brief.params = [
                parameter
                for parameter in self.params
                if parameter.name in COMMON or getattr(parameter, "rich_help_panel", None) == target_panel
            ]
            more = [f"All options: {ctx.command_path} {HELP_ALL}"]
            more += [f"{title}: {ctx.command_path} --on {target} --help" for target, title in titles.items()]
            brief.epilog = "\n\n".join(filter(None, (*more, self.epilog)))
        super(Command, brief).format_help(ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands whose options have defaults in a pyproject.toml, and whose usage errors are RequestErrors."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after the table has replaced the defaults of the options."""
        set_table_defaults(self, ctx, args)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the command line and exit with its exit code.

        Raises:
            RequestError: for a usage error.
        """
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except typer.Abort as abort:  # in place of every EOFError, also that of a file
            raise (abort.__cause__ or abort) from None
        except SystemExit as error:  # rich and typer exit with 1 if nobody reads their output
            raise SystemExit(CLOSED if isinstance(error.__context__, BrokenPipeError) else error.code) from None
        except Exception as error:
            if getattr(error, "ctx", None) is None or not hasattr(error, "format_message"):
                raise
            hint = hint_of(error, error.ctx)  # type: ignore[attr-defined]
            message = error.format_message().replace("Value error, ", "")  # of pydantic
            raise RequestError(" ".join(message.split()), hint=hint) from None
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
        if "script_args" in names:
            return "Script arguments go after --: orch train script.py -- --epochs 3."
        if "command" in names:
            return "The options of the command go after --: orch exec inventory/prod -- ls -l."
    if getattr(getattr(error, "param", None), "name", "") == "recipe":
        return TRAIN_EXAMPLES
    if "show" in getattr(ctx.command, "commands", ()):
        return f"To show one: {ctx.command_path} show NAME. `{ctx.command_path} --help` lists the commands."
    return f"`{ctx.command_path} --help` lists what it takes."


class App(typer.Typer):
    """A Typer application whose commands are of the class Command."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **settings)
