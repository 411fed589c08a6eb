"""The command `orch report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunsDir, print_error
from orchestrator.screen import print_text

RunNames = Annotated[list[str] | None, typer.Argument(metavar="ID|last", help="One or more runs. Default: the newest.")]


def report(
    runs: RunNames = None,
    inventory: OfInventory = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="File to write. Default: in the run's folder, or in --runs-dir for several runs.",
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of a run: loss, throughput, stragglers, memory and a timeline.

    With several runs: compare their loss, throughput, scaling and settings.
    """
    import json

    from orchestrator.operations import report as operation
    from orchestrator.report.listing import SCHEMA

    page = operation.report(runs_dir, runs or ["last"], inventory=inventory, output=output, notify=print_error)
    path = str(page)
    value = {"schema": SCHEMA, "kind": "report", "path": path}
    print_text(json.dumps(value) if as_json else path)
