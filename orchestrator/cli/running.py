"""What commands that run a plan have in common: show it, or do it and tell what came of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import arrays
from orchestrator.cli.options import RUNS_DIR
from orchestrator.cli.output import Output
from orchestrator.planning.plan import Plan
from orchestrator.screen import say

if TYPE_CHECKING:
    from orchestrator.report.live import Screen
    from orchestrator.runs.outcome import Outcome
    from orchestrator.targets.interface import RunHandle


def show_or_run(plan: Plan, output: Output, begin: Callable[[Plan, Path], RunHandle]) -> None:
    """`begin` starts the plan, which is recorded in a folder. Ends the program with the run's exit
    code, or leaves the run alone where it is not waited for."""
    from orchestrator.operations.output import check_shown
    from orchestrator.report import plans

    check_shown(output.show, plan.layout.world_size)
    if output.dry_run:
        say(plans.as_json(plan) if output.json else plan.describe(), nl=output.json, program=True)
        return
    from orchestrator.report import decided, live

    screen = live.Screen(of_ranks=output.show)
    handle = begin(plan, output.runs_dir.absolute() / plan.run.run_id)
    if plan.array:
        arrays.follow(plan, output.runs_dir.absolute(), as_json=output.json, wait=output.wait)
        return
    handle.tell = screen.note
    if not output.wait:
        handle.started()
        say(plans.started_as_json(plan) if output.json else plans.started(plan))
        return
    screen.begin([*decided.lines(plan, verbose=output.verbose), f"files: {plan.run.run_dir}"])

    def interrupted() -> None:
        screen.note("interrupted: stopping all ranks")
        handle.interrupt()

    watch(handle, screen, as_json=output.json, interrupted=interrupted)


def watch(
    handle: RunHandle, screen: Screen, *, as_json: bool, interrupted: Callable[[], None]
) -> None:
    """Show a run until it ends, or Ctrl-C; then say what came of it, and end the program."""
    from orchestrator.operations.output import RanksOutput
    from orchestrator.report import training

    lines = RanksOutput(handle, screen.of_ranks, screen.lines, screen.note)
    try:
        for event in handle.events():
            lines.begin()
            screen.show(event)
    except KeyboardInterrupt:
        interrupted()
    outcome = handle.finish()
    if not lines.end():
        screen.note(f"there is more: orch logs {handle.record.run_id}")
    screen.end()
    say(training.as_json(outcome) if as_json else training.text(outcome))
    if not as_json and (more := way_on(outcome)):
        say(more)
    raise typer.Exit(outcome.exit_code)


def way_on(outcome: Outcome) -> str:
    """What tells more about a run that has ended."""
    words = {"done": "report", "failed": "logs"}.get(outcome.state)
    base = outcome.folder.parent
    where = "" if base == RUNS_DIR.absolute() else f" --runs-dir {shlex.quote(str(base))}"
    return f"more about it: orch {words} {outcome.run_id}{where}" if words else ""
