"""What several commands share: options, and what is said beside the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.screen import say

RunName = Annotated[str, typer.Argument(metavar="ID|last", help="The run; `orch runs` lists them, last is the newest.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
RunsDir = Annotated[
    Path, typer.Option(envvar="ORCH_RUNS_DIR", metavar="FOLDER", help="Where run directories are kept.")
]
OfInventory = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        metavar="INVENTORY",
        help="Ask the nodes of this inventory: finds runs that other machines have started.",
    ),
]
RUNS_DIR = Path("runs")
SHOW = typer.Option("--show", metavar="RANK|all|none", help="Whose output to show while the run is watched.")
RecipePath = Annotated[
    list[Path] | None,
    typer.Option(
        envvar="ORCH_RECIPE_PATH",
        metavar="FOLDER",
        help="A folder with a recipe.toml, or of several such folders; may be repeated.",
    ),
]


def said_by(context: typer.Context, name: str) -> str:
    """Where a parameter's value is from: COMMANDLINE, ENVIRONMENT, DEFAULT, ..."""
    source = context.get_parameter_source(name)
    return source.name if source else ""


def check_subcommand(context: typer.Context, *read: str) -> None:
    """Raises RequestError for options before a subcommand that it does not read: not `read`."""
    from orchestrator.errors import RequestError

    for one in context.command.params:
        if one.name and one.name not in read and said_by(context, one.name) == "COMMANDLINE":
            words = f"{context.command_path} {context.invoked_subcommand}"
            raise RequestError(
                f"{one.opts[0]} before {context.invoked_subcommand} is not read.",
                hint=f"After it, if it knows the option: {words} {one.opts[0]}.",
            )


def complain(line: str) -> None:
    say(line, err=True)
