"""`orch report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir, complain
from orchestrator.screen import say


def report(
    run: RunName = "last",
    inventory: OfInventory = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write it; default: the run's folder."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write a page about a run: loss, throughput, stragglers, memory, what happened when."""
    import json

    from orchestrator.operations import report as operation
    from orchestrator.report.listing import SCHEMA

    made = operation.report(runs_dir, run, inventory=inventory, output=output, tell=complain)
    path = str(made)
    value = {"schema": SCHEMA, "kind": "report", "path": path}
    say(json.dumps(value) if as_json else path)
