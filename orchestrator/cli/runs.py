"""`orch runs`: list, show, logs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir

app = typer.Typer(help="What was run: list, show, logs.", invoke_without_command=True)
COLUMNS = ("id", "state", "recipe", "ranks", "nodes", "progress", "started_by")


@app.callback()
def runs(
    context: typer.Context,
    inventory: OfInventory = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """List the runs, oldest first: those recorded here, or those of an inventory's nodes."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import listing

    context.obj = runs_dir
    if context.invoked_subcommand:
        return
    rows = operation.rows(runs_dir) if inventory is None else nodes_rows(inventory)
    typer.echo(listing.as_json("runs", rows) if as_json else listing.table(rows, COLUMNS))


def nodes_rows(inventory: str) -> list[dict[str, Any]]:
    from orchestrator.operations import runs as operation

    rows, silent = operation.rows_of_inventory(inventory)
    for line in silent:
        typer.echo(f"no answer from {line}", err=True)
    return rows


@app.command()
def show(
    context: typer.Context,
    run: RunName = "last",
    inventory: OfInventory = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a run was and how it ended."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import training

    outcome = operation.outcome(context.obj, run, inventory)
    typer.echo(training.as_json(outcome) if as_json else training.whole(outcome))


@app.command()
def logs(
    context: typer.Context,
    run: RunName = "last",
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
) -> None:
    """Print the logs of a run's ranks, each line with its rank."""
    from orchestrator.operations import runs as operation

    for number, line in operation.log_lines(context.obj, run, rank):
        typer.echo(f"[{number}] {line}")
