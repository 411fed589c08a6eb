"""What a command that plans a run prints, and whether the run is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.models import ParameterInfo

from orchestrator.cli.options import RUNS_DIR, SHOW

if TYPE_CHECKING:
    from orchestrator.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """`format`: what -o says; `show`: whose lines are shown."""

    runs_dir: Path = RUNS_DIR
    wait: bool = True
    show: str = "0"
    verbose: bool = False
    dry_run: bool = False
    format: str | None = None
    as_json: bool = False

    @property
    def json(self) -> bool:
        return self.as_json or self.format == "json"


OUTPUT: Mapping[str, ParameterInfo] = {
    "runs_dir": typer.Option(envvar="ORCH_RUNS_DIR", metavar="FOLDER", help="Where run directories are kept."),
    "wait": typer.Option("--wait/--detach", help="Watch the run until it ends, or start it and return."),
    "show": SHOW,
    "verbose": typer.Option("--verbose", "-v", help="Print every decision with its reason."),
    "dry_run": typer.Option(help="Print what would be done, as a shell script; do nothing."),
    "format": typer.Option("-o", metavar="yaml|json", help="With --dry-run: the manifest, or JSON."),
    "as_json": typer.Option("--json", help="Print one JSON object instead of text."),
}


def check_format(output: Output) -> None:
    """Raises RequestError for formats that there are not, or not of this."""
    from orchestrator.errors import RequestError

    if output.format not in (None, "yaml", "json"):
        raise RequestError(f"-o {output.format}: there is no such format.", hint="Give yaml or json.")
    if output.format == "yaml" and (output.as_json or not output.dry_run):
        other = "not with --json" if output.as_json else "for --dry-run"
        raise RequestError(f"-o yaml is the plan's manifest: {other}.", hint="--dry-run -o yaml prints it.")


def check_manifest(output: Output, plan: Plan, where: str) -> None:
    """Raises RequestError for the YAML of a plan that is a script; `where`: it is none."""
    from orchestrator.errors import RequestError

    if output.format == "yaml" and not plan.manifests:
        raise RequestError(f"-o yaml is for {where}: this plan is a shell script.", hint="Leave -o yaml out.")
