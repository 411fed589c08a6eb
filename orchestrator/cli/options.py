"""Options that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ParameterInfo

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
OUTPUT: Mapping[str, ParameterInfo] = {
    "runs_dir": typer.Option(envvar="ORCH_RUNS_DIR", metavar="FOLDER", help="Folder of the run folders."),
    "wait": typer.Option("--wait/--detach", help="Watch the run until it ends, or only start it."),
    "show": SHOW,
    "verbose": typer.Option("--verbose", "-v", help="Print all decisions with their reasons."),
    "dry_run": typer.Option(help="Print the decisions, files and commands of the plan, without running it."),
    "format": typer.Option(
        "-o", metavar="sh|yaml|json", help="Format of --dry-run: all as a script, a manifest or JSON."
    ),
    "as_json": typer.Option("--json", help="Print one JSON object instead of text."),
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Options for what is printed about a run, and whether it is started."""

    runs_dir: Path = RUNS_DIR
    wait: bool = True  # watch the run until it ends
    show: str = "0"  # the rank whose lines are shown, or all, or none
    verbose: bool = False
    dry_run: bool = False
    format: str | None = None  # the value of -o
    as_json: bool = False

    @property
    def json(self) -> bool:
        """Return whether the output is JSON, by either option."""
        return self.as_json or self.format == "json"


def check_format(output: Output) -> None:
    """Raise RequestError if the format is unknown or contradicts other options."""
    if output.format not in (None, "sh", "yaml", "json"):
        raise RequestError(f"-o {output.format}: unknown format.", hint="Use sh, yaml or json.")
    if output.format in ("sh", "yaml") and (output.as_json or not output.dry_run):
        conflict = "does not work with --json" if output.as_json else "requires --dry-run"
        raise RequestError(f"-o {output.format} {conflict}.", hint=f"To print the plan: --dry-run -o {output.format}.")
