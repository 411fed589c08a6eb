"""What commands that run a plan have in common: show it, or do it and tell what came of it."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.plan import Plan


def show_or_run(plan: Plan, runs_dir: Path, *, dry_run: bool, as_json: bool) -> None:
    """Ends the program with the run's exit code."""
    from orchestrator.operations import train as operation
    from orchestrator.report import plans, training

    if dry_run:
        typer.echo(plans.as_json(plan) if as_json else plan.describe(), nl=as_json)
        return
    execution = operation.Execution(plan, runs_dir.absolute() / plan.run_id)
    screen = training.Screen(plan)
    screen.begin()
    execution.start()
    try:
        for event in execution.watch():
            screen.show(event)
    except KeyboardInterrupt:
        screen.note("interrupted: stopping all ranks")
        execution.stop()
    outcome = execution.finish()
    for line in execution.missing:
        screen.note(line)
    screen.end()
    typer.echo(training.as_json(outcome) if as_json else training.text(outcome))
    raise typer.Exit(outcome.exit_code)
