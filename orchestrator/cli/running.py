"""What commands that run a plan have in common: show it, or do it and tell what came of it."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.plan import Plan


def show_or_run(
    plan: Plan, runs_dir: Path, *, dry_run: bool, as_json: bool, wait: bool = True
) -> None:
    """Ends the program with the run's exit code, or leaves the run alone without `wait`."""
    from orchestrator.operations import train as operation
    from orchestrator.report import plans, training

    if dry_run:
        typer.echo(plans.as_json(plan) if as_json else plan.describe(), nl=as_json)
        return
    screen = training.Screen()
    watch = operation.start(plan, runs_dir.absolute() / plan.run_id)
    watch.tell = screen.note
    if not wait:
        watch.started()
        typer.echo(plans.started_as_json(plan) if as_json else plans.started(plan))
        return
    screen.begin([*plan.summary(), f"files: {plan.run_dir}"])
    try:
        for event in watch.events():
            screen.show(event)
    except KeyboardInterrupt:
        screen.note("interrupted: stopping all ranks")
        watch.stop()
    outcome = watch.finish()
    screen.end()
    typer.echo(training.as_json(outcome) if as_json else training.text(outcome))
    raise typer.Exit(outcome.exit_code)
