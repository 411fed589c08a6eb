"""Defaults of options from the environment and from the table [tool.orch] of a pyproject.toml.

The command line replaces the environment, and that replaces the table.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from orchestrator.cli.options import RUNS_DIR, print_error, source_name
from orchestrator.load.tool_options import tool_options
from orchestrator.model.decision import Decision
from orchestrator.model.printable import masked
from orchestrator.planning.request import TrainRequest, flag
from orchestrator.targets import registry

ORDER = ("", "DEFAULT", "DEFAULT_MAP", "ENVIRONMENT", "COMMANDLINE")
TABLE_SOURCE, ENVIRONMENT_SOURCE = "DEFAULT_MAP", "ENVIRONMENT"
FILE = "orch.defaults_file"  # key in context.meta: the file with the table
EXCLUSIVE = (("inventory", "on"), ("inventory", "target"), ("python", "venv"))
VARIABLE = "ORCH_INVENTORY"
# Options of the table that belong to its hosts: without effect if other hosts are named.
OF_HOSTS = ("nodes", "exclude", "ppn", "fabric", "mpi", "python", "spare_nodes", "min_nodes", "image", "image_options")
HELP = ("-h", "--help", "--help-all")


def set_defaults(context: Any, arguments: Collection[str]) -> None:
    """Make the options of the table the defaults of a command.

    `orch train` and `orch data prepare` have all of them, other commands the inventory if they need one, and the folder
    of the runs.
    """
    parameters = {parameter.name: parameter for parameter in context.command.params}
    trains = "recipe" in parameters or "inputs" in parameters
    names = {
        name
        for name, parameter in parameters.items()
        if trains or name == "runs_dir" or (name == "inventory" and parameter.param_type_name == "argument")
    }
    if not names or context.resilient_parsing or any(argument in HELP for argument in arguments):
        return
    table = tool_options()
    if table.values:
        context.meta[FILE] = table.path
        context.default_map = {name: plain(value) for name, value in table.values.items() if name in names}


def plain(value: Any) -> Any:
    """Return a value as the parser of an option takes it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, bool) else str(value)


def apply_precedence(context: Any) -> None:
    """Omit defaults that do not suit an option with precedence, such as the inventory if --on is given.

    A run that is not recorded on this machine is looked for on the default inventory.
    """
    ranks = {name: ORDER.index(source_name(context, name)) for name in context.params}
    omitted = {
        min(names, key=ranks.__getitem__)
        for names in EXCLUSIVE
        if ranks.keys() >= {*names} and ranks[names[0]] != ranks[names[1]]
    }
    table = context.default_map or {}
    if any(
        ranks[name] > ORDER.index(TABLE_SOURCE) and context.params[name] != table.get(name)
        for name in ("inventory", "on")
        if name in ranks
    ):
        omitted |= {name for name in OF_HOSTS if ranks.get(name) == ORDER.index(TABLE_SOURCE)}
    for name in omitted:
        source = context.get_parameter_source(name)
        if source.name in (TABLE_SOURCE, ENVIRONMENT_SOURCE):
            context.params[name] = None
            context.set_parameter_source(name, type(source).DEFAULT)
    if {"run", "inventory"} <= ranks.keys() and context.params["inventory"] is None:
        context.params["inventory"] = inventory_of_unknown_run(context.params)


def inventory_of_unknown_run(parameters: Mapping[str, Any]) -> str | None:
    """Return the default inventory if a run is named that has no folder on this machine."""
    run, folder = parameters["run"], parameters.get("runs_dir") or RUNS_DIR
    if run == "last" or any(path.name.startswith(run) for path in Path(folder).glob("*")):
        return None
    if inventory := os.environ.get(VARIABLE):
        return inventory
    return tool_options().values.get("inventory")


def describe_table(context: Any) -> str:
    """Return the options that the table sets, as a sentence; empty without any."""
    names = [flag(name) for name in context.default_map or {} if source_name(context, name) == TABLE_SOURCE]
    return f"[tool.orch] of {context.meta[FILE]} sets {', '.join(names)}." if names else ""


def with_defaults(request: TrainRequest, context: Any) -> TrainRequest:
    """Return the request with decisions about its defaults, and without those that its target refuses."""
    refuses = registry.find_target(request.on).refuses
    field_defaults: dict[str, Any] = {item.name: item.default for item in fields(request)}
    values: dict[str, list[str]] = {}
    refused: dict[str, Any] = {}
    table = f"[tool.orch] of {context.meta.get(FILE)}"
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
