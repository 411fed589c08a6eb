"""What commands that run a plan have in common: show it, or do it and tell what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.planning.plan import Plan
from orchestrator.screen import say

if TYPE_CHECKING:
    from orchestrator.targets.interface import RunHandle


def show_or_run(
    plan: Plan,
    runs_dir: Path,
    begin: Callable[[Plan, Path], RunHandle],
    *,
    dry_run: bool,
    as_json: bool,
    wait: bool = True,
) -> None:
    """`begin` starts the plan, which is recorded in a folder. Ends the program with the run's exit
    code, or leaves the run alone without `wait`."""
    from orchestrator.report import plans

    if dry_run:
        say(plans.as_json(plan) if as_json else plan.describe(), nl=as_json, program=True)
        return
    from orchestrator.report import live, training

    screen = live.Screen()
    handle = begin(plan, runs_dir.absolute() / plan.run.run_id)
    handle.tell = screen.note
    if not wait:
        handle.started()
        say(plans.started_as_json(plan) if as_json else plans.started(plan))
        return
    screen.begin([*plan.summary(), f"files: {plan.run.run_dir}"])
    try:
        for event in handle.events():
            screen.show(event)
    except KeyboardInterrupt:
        screen.note("interrupted: stopping all ranks")
        handle.interrupt()
    outcome = handle.finish()
    screen.end()
    say(training.as_json(outcome) if as_json else training.text(outcome))
    raise typer.Exit(outcome.exit_code)
