"""`orch runs`: list, show, logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import attach
from orchestrator.cli.app import App
from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir, check_subcommand, complain
from orchestrator.screen import say

app = App(help="The runs: list them, show one, compare two.", invoke_without_command=True)
COLUMNS = ("id", "state", "recipe", "ranks", "nodes", "progress", "started_by")

# Also behind the subcommand; the variable ORCH_RUNS_DIR is read by the option before it.
OwnRunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", metavar="FOLDER", help="Where run directories are kept.")
]


@app.callback()
def runs(
    context: typer.Context, inventory: OfInventory = None, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False
) -> None:
    """List the runs, oldest first: those recorded here, or those of an inventory's nodes.

    Exit code 1 if a node did not answer.
    """
    from orchestrator.operations import runs as operation
    from orchestrator.report import listing

    context.obj = runs_dir
    if context.invoked_subcommand:
        check_subcommand(context, "runs_dir")
        return
    found = operation.listed(runs_dir, inventory)
    rows = [asdict(row) for row in found.rows]
    say(listing.as_json("runs", rows) if as_json else listing.table([name_this_machine(row) for row in rows], COLUMNS))
    for line in found.warnings:
        complain(f"warning: {line}")
    for line in found.silent:
        complain(f"no answer from {line}")
    raise typer.Exit(1 if found.silent else 0)


def name_this_machine(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that does not call this machine by the name of a cluster's first node."""
    return {**row, "nodes": "this machine"} if row["local"] else row


@app.command()
def show(
    context: typer.Context,
    run: RunName = "last",
    inventory: OfInventory = None,
    runs_dir: OwnRunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a run was and how it ended."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import training

    outcome = operation.outcome(runs_dir or context.obj, run, inventory, complain)
    say(training.as_json(outcome) if as_json else training.whole(outcome))


@app.command()
def logs(
    context: typer.Context,
    run: RunName = "last",
    rank: Annotated[int | None, typer.Option(metavar="RANK", help="Only this rank.")] = None,
    runs_dir: OwnRunsDir = None,
) -> None:
    """Print the logs of a run's ranks: `orch logs` has more options."""
    attach.logs(run=run, rank=rank, runs_dir=runs_dir or context.obj)
