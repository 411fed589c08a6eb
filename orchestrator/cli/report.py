"""The command `orch report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunsDir, print_error
from orchestrator.operations import report as operation
from orchestrator.report.listing import SCHEMA
from orchestrator.screen import print_text


def report(
    run: Annotated[str, typer.Argument(metavar="ID|last", help="Run. Default: the newest.")] = "last",
    inventory: OfInventory = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="File to write. Default: in the run's folder."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of a run: loss, throughput, stragglers, memory and a timeline."""
    page = operation.report(runs_dir, run, inventory=inventory, output=output, notify=print_error)
    path = str(page)
    value = {"schema": SCHEMA, "kind": "report", "path": path}
    print_text(json.dumps(value) if as_json else path)
