"""Watch the runs of a job array and print their outcomes."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.cli.options import print_error, resume_command
from orchestrator.operations import queue, runs
from orchestrator.planning.plan import Plan
from orchestrator.report import run_list
from orchestrator.runs import store
from orchestrator.screen import print_text


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
    names = [member.run.run_id for member in plan.array]
    waits = plan.request.wait_for_cores
    handles = [] if waits else runs.handles_of(plan, base, print_error)
    if not wait:
        for handle in handles[:1]:
            handle.started()
        print_text(run_list.started_json(plan) if as_json else run_list.started_text(plan), err=not as_json)
        return
    print_error(run_list.started_text(plan))
    outcomes = []
    try:
        for outcome in queue.follow(base, names, print_error) if waits else runs.follow_array(handles, print_error):
            print_error(run_list.array_line(outcome))
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print_error("interrupted: stopping all runs")
        ended = {outcome.run_id for outcome in outcomes}
        unfinished = [name for name in names if name not in ended]
        outcomes += queue.interrupt(base, unfinished) if waits else runs.interrupt_all(handles, unfinished)
    outcomes.sort(key=lambda outcome: names.index(outcome.run_id))
    code = runs.array_exit_code(outcomes)
    print_text(run_list.array_json(outcomes, code) if as_json else run_list.array_text(outcomes), err=not as_json)
    if any(store.can_resume(store.load(outcome.folder)) for outcome in outcomes):
        array, base = outcomes[0].run_id.rpartition("-")[0], outcomes[0].folder.parent
        print_error(f"resume: {resume_command(array, base)}")
    raise typer.Exit(code)
