"""Output options of commands that plan a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.models import ParameterInfo

from orchestrator.cli.options import RUNS_DIR, SHOW
from orchestrator.errors import RequestError


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


def check_format(output: Output) -> None:
    """Raise RequestError if the format is unknown or contradicts other options."""
    if output.format not in (None, "sh", "yaml", "json"):
        raise RequestError(f"-o {output.format}: unknown format.", hint="Use sh, yaml or json.")
    if output.format in ("sh", "yaml") and (output.as_json or not output.dry_run):
        conflict = "does not work with --json" if output.as_json else "requires --dry-run"
        raise RequestError(f"-o {output.format} {conflict}.", hint=f"To print the plan: --dry-run -o {output.format}.")
