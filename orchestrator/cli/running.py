"""What commands that run a plan have in common: show it, or do it and tell what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.plan import Plan

if TYPE_CHECKING:
    from orchestrator.operations.kube.watch import KubeWatch
    from orchestrator.operations.watch import Watch

    Watched = Watch | KubeWatch


def show_or_run(
    plan: Plan,
    runs_dir: Path,
    begin: Callable[[Plan, Path], Watched],
    *,
    dry_run: bool,
    as_json: bool,
    wait: bool = True,
) -> None:
    """`begin` starts the plan, which is recorded in a folder. Ends the program with the run's exit
    code, or leaves the run alone without `wait`."""
    from orchestrator.report import plans, training

    if dry_run:
        typer.echo(plans.as_json(plan) if as_json else plan.describe(), nl=as_json)
        return
    screen = training.Screen()
    watch = begin(plan, runs_dir.absolute() / plan.run_id)
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
