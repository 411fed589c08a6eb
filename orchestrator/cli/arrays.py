"""A plan that starts several runs at once: do it, and tell what came of each."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.cli.options import complain
from orchestrator.planning.plan import Plan
from orchestrator.screen import say


def follow(plan: Plan, base: Path, *, as_json: bool, wait: bool) -> None:
    """They have begun; `base`: the folder of runs. Ends the program, with 1 where one failed."""
    from orchestrator.operations import array
    from orchestrator.report import arrays

    handles = array.members(plan, base, complain)
    if not wait:
        handles[0].started()
        say(arrays.started_as_json(plan) if as_json else arrays.started(plan))
        return
    complain(arrays.started(plan))
    outcomes = []
    try:
        for outcome in array.follow(handles, complain):
            complain(arrays.line(outcome))
            outcomes.append(outcome)
    except KeyboardInterrupt:
        complain("interrupted: stopping all runs")
        array.stop(handles[len(outcomes) :])
        outcomes += [handle.finish() for handle in handles[len(outcomes) :]]
    code = array.exit_code(outcomes)
    say(arrays.as_json(outcomes, code) if as_json else arrays.text(outcomes))
    raise typer.Exit(code)
