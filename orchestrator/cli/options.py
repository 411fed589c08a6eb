"""Options that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import RequestError
from orchestrator.screen import print_text

RunName = Annotated[
    str,
    typer.Argument(metavar="ID|last", help="ID or name of a run, or last for the newest run. `orch runs` lists them."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
UserPackages = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Packages to add to the stack: a requirements file, a pyproject.toml, or a script with metadata.",
    ),
]
RunsDir = Annotated[Path, typer.Option(envvar="ORCH_RUNS_DIR", metavar="FOLDER", help="Folder of the run folders.")]
OfInventory = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        metavar="INVENTORY",
        help="Query the nodes of this inventory; also finds runs started from other machines.",
    ),
]
RUNS_DIR = Path("runs")
SHOW = typer.Option("--show", metavar="RANK|all|none", help="Ranks whose output is shown.")
RecipePath = Annotated[
    list[Path] | None,
    typer.Option(
        envvar="ORCH_RECIPE_PATH",
        metavar="FOLDER",
        help="Folder with a recipe.toml, or with several recipe folders; may be repeated.",
    ),
]


def source_name(context: typer.Context, name: str) -> str:
    """Return the source of a parameter's value, such as COMMANDLINE, ENVIRONMENT or DEFAULT."""
    source = context.get_parameter_source(name)
    return source.name if source else ""


def check_subcommand(context: typer.Context, *read: str) -> None:
    """Check that no option before a subcommand would be ignored.

    Args:
        context: context of the command group.
        read: parameters of the group that its subcommands read.

    Raises:
        RequestError: if there is such an option.
    """
    for option in context.command.params:
        if option.name and option.name not in read and source_name(context, option.name) == "COMMANDLINE":
            subcommand = context.invoked_subcommand
            raise RequestError(
                f"{option.opts[0]} has no effect before '{subcommand}'.",
                hint=f"Put it after the subcommand, if that supports it: {context.command_path} {subcommand} "
                f"{option.opts[0]}.",
            )


def print_error(line: str) -> None:
    """Print a line on standard error."""
    print_text(line, err=True)


def runs_dir_option(base: Path) -> str:
    """Return the option that names the folder of all runs, or '' for the default."""
    return "" if base == RUNS_DIR.absolute() else f" --runs-dir {shlex.quote(str(base))}"


def resume_command(run_id: str, base: Path) -> str:
    """Return the command that resumes a run of the folder `base` of all runs."""
    return f"orch resume {run_id}{runs_dir_option(base)}"
