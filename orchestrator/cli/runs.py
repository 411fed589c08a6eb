"""The commands `orch report` and `orch runs`: list, show, compare."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import App, CommandGroup
from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir, has_subcommand, print_error
from orchestrator.operations import runs as operation
from orchestrator.report import comparison, page, run_list, training
from orchestrator.report.listing import finite, json_text
from orchestrator.runs import store
from orchestrator.runs.outcome import outcome_of
from orchestrator.screen import print_text

ByResult = Annotated[str | None, typer.Option("--by", metavar="RESULT", help="Rank the runs by this result.")]


Ascending = Annotated[
    bool | None,
    typer.Option(
        "--ascending/--descending",
        help="Order of --by. Default: ascending for losses, errors and times.",
        show_default=False,
    ),
]


def compare(
    context: typer.Context,
    a: RunName,
    b: RunName = "last",
    result: ByResult = None,
    ascending: Ascending = None,
    as_json: AsJson = False,
) -> None:
    """Compare the settings and the results of two runs, or rank the runs of arrays."""
    array = store.members(context.obj, a)
    names = (a,) if array and b == "last" else (a, b)
    selections = [
        store.members(context.obj, name, print_error) or (store.find(context.obj, name, print_error),) for name in names
    ]
    updated = operation.update(chain.from_iterable(selections), print_error)
    if array or result or len(updated) > 2:
        smallest_first = comparison.is_smaller_better(result or "") if ascending is None else ascending
        ranked = comparison.rank_runs(updated, result, smallest_first=smallest_first)
        if result and ascending is None:
            order, reverse = ("smallest", "--descending") if smallest_first else ("largest", "--ascending")
            print_error(f"the {order} {result} comes first ({reverse}: last)")
        print_text(json_text("ranking", runs=finite(ranked)) if as_json else comparison.ranking_text(ranked, result))
        return
    compared = comparison.compare(*updated)
    print_text(json_text("comparison", finite(compared)) if as_json else comparison.text(compared))


def report(
    run: RunName = "last",
    inventory: OfInventory = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Default: in the run's folder.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of a run: loss, throughput, stragglers, memory and a timeline."""
    path = str(page.write(operation.find_refreshed(runs_dir, run, inventory, print_error), output))
    print_text(json_text("report", path=path) if as_json else path)


app = App(cls=CommandGroup, help="List the runs, show one, or compare two.", invoke_without_command=True)

# The same option after the subcommand; the option before it reads ORCH_RUNS_DIR and [tool.orch].
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
    context.obj = runs_dir
    if has_subcommand(context, "runs_dir"):
        return
    listed = operation.list_recorded_runs(runs_dir, inventory)
    if as_json:
        print_text(json_text("runs", runs=[asdict(row) for row in listed.rows]))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print_text(run_list.text(listed.rows, now=time.time(), width=width))
    for line in listed.warnings:
        print_error(f"warning: {line}")
    for line in listed.unreachable:
        print_error(f"no response from {line}")
    raise typer.Exit(1 if listed.unreachable else 0)


@app.command()
def show(
    context: typer.Context,
    run: RunName = "last",
    inventory: OfInventory = None,
    runs_dir: SubcommandRunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's settings, layout, results and outcome."""
    outcome = outcome_of(operation.find_refreshed(runs_dir or context.obj, run, inventory, print_error))
    print_text(training.as_json(outcome) if as_json else training.full_report(outcome))


app.command("compare")(compare)
