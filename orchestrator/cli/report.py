"""`orch report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunsDir, complain
from orchestrator.screen import say

RunNames = Annotated[
    list[str] | None, typer.Argument(metavar="ID|last", help="One run, or several; default: the newest.")
]


def report(
    runs: RunNames = None,
    inventory: OfInventory = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="Where to write it; default: the run's folder, or that of all runs.",
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write a page about a run: loss, throughput, stragglers, memory, what happened when.

    Of several runs: their losses, throughput, scaling and settings beside each other.
    """
    import json

    from orchestrator.operations import report as operation
    from orchestrator.report.listing import SCHEMA

    made = operation.report(runs_dir, runs or ["last"], inventory=inventory, output=output, tell=complain)
    path = str(made)
    value = {"schema": SCHEMA, "kind": "report", "path": path}
    say(json.dumps(value) if as_json else path)
