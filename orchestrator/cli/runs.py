"""`orch runs`: list, show, logs."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, RunsDir

app = typer.Typer(help="What was run: list, show, logs.", invoke_without_command=True)
RunName = Annotated[str, typer.Argument(metavar="ID|last")]


@app.callback()
def runs(context: typer.Context, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False) -> None:
    """List the runs, oldest first."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import listing

    context.obj = runs_dir
    if context.invoked_subcommand:
        return
    rows = operation.rows(runs_dir)
    typer.echo(
        listing.as_json("runs", rows)
        if as_json
        else listing.table(rows, ("id", "state", "recipe", "ranks", "backend", "precision"))
    )


@app.command()
def show(context: typer.Context, run: RunName = "last", as_json: AsJson = False) -> None:
    """Tell what a run was and how it ended."""
    from orchestrator.operations import runs as operation
    from orchestrator.report import training

    outcome = operation.outcome(context.obj, run)
    typer.echo(training.as_json(outcome) if as_json else training.story(outcome))


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
