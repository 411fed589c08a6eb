"""The commands of `orch runs`: list, show, logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import attach, compare
from orchestrator.cli.app import App
from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir, check_subcommand, print_error
from orchestrator.model.hostlist import fold
from orchestrator.screen import print_text

app = App(help="List the runs, show one, or compare two.", invoke_without_command=True)
COLUMNS = ("id", "state", "recipe", "ranks", "nodes", "progress", "started_by")

# The same option after the subcommand; the option before it reads the variable ORCH_RUNS_DIR.
SubcommandRunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", metavar="FOLDER", help="Folder of the run folders.")
]


@app.callback()
def runs(
    context: typer.Context, inventory: OfInventory = None, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False
) -> None:
    """List the runs recorded on this machine or on the nodes of an inventory, oldest first.

    With --inventory the exit code is 1 if a node did not respond. Without it, the nodes of recorded runs that have
    not ended are queried for a few seconds; if they do not respond, the state is unknown.
    """
    from orchestrator.operations import runs as operation
    from orchestrator.report import listing

    context.obj = runs_dir
    if context.invoked_subcommand:
        check_subcommand(context, "runs_dir")
        return
    run_list = operation.list_recorded_runs(runs_dir, inventory)
    rows = [asdict(row) for row in run_list.rows]
    print_text(
        listing.as_json("runs", rows) if as_json else listing.table([name_this_machine(row) for row in rows], COLUMNS)
    )
    for line in run_list.warnings:
        print_error(f"warning: {line}")
    for line in run_list.unreachable:
        print_error(f"no response from {line}")
    raise typer.Exit(1 if run_list.unreachable else 0)


def name_this_machine(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that does not call this machine by the name of a cluster's first node."""
    return {**row, "nodes": "this machine" if row["local"] else fold(row["nodes"])}


@app.command()
def show(
    context: typer.Context,
    run: RunName = "last",
    inventory: OfInventory = None,
    runs_dir: SubcommandRunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's settings, layout, results and outcome."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import training

    outcome = operation.outcome(runs_dir or context.obj, run, inventory, print_error)
    print_text(training.as_json(outcome) if as_json else training.full_report(outcome))


@app.command()
def logs(
    context: typer.Context,
    run: RunName = "last",
    rank: Annotated[int | None, typer.Option(metavar="RANK", help="Only this rank.")] = None,
    runs_dir: SubcommandRunsDir = None,
) -> None:
    """Print the logs of a run's ranks. `orch logs` has more options."""
    attach.logs(run=run, rank=rank, runs_dir=runs_dir or context.obj)


app.command("compare")(compare.compare)
