"""Watch the runs of a job array and print their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.options import print_error, resume_command
from orchestrator.planning.plan import Plan
from orchestrator.screen import print_text

if TYPE_CHECKING:
    from orchestrator.runs.outcome import Outcome


def follow(plan: Plan, base: Path, *, as_json: bool, wait: bool) -> None:
    """Watch the started runs of an array, print their outcomes and exit.

    Args:
        plan: the plan that has started the runs.
        base: the folder of all run folders.
        as_json: whether to print JSON.
        wait: whether to watch the runs until they end.

    Raises:
        typer.Exit: With exit code 1 if a run failed.
    """
    from orchestrator.operations import runs
    from orchestrator.report import arrays

    handles = runs.array_handles(plan, base, print_error)
    if not wait:
        handles[0].started()
        print_text(arrays.started_as_json(plan) if as_json else arrays.started(plan))
        return
    print_error(arrays.started(plan))
    outcomes = []
    try:
        for outcome in runs.follow_array(handles, print_error):
            print_error(arrays.line(outcome))
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print_error("interrupted: stopping all runs")
        unfinished = handles[len(outcomes) :]
        for handle in unfinished:
            handle.interrupt()
        outcomes += [handle.finish() for handle in unfinished]
    code = runs.array_exit_code(outcomes)
    print_text(arrays.as_json(outcomes, code) if as_json else arrays.text(outcomes))
    print_resume(outcomes, as_json=as_json)
    raise typer.Exit(code)


def print_resume(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """Print the command that resumes the unfinished runs of an array, next to JSON on standard error."""
    from orchestrator.runs import store

    if any(store.can_resume(store.load(outcome.folder)) for outcome in outcomes):
        array, base = outcomes[0].run_id.rpartition("-")[0], outcomes[0].folder.parent
        (print_error if as_json else print_text)(f"resume: {resume_command(array, base)}")
