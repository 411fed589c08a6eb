"""The command `orch resume`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import typer
from typer.models import ParameterInfo

from orchestrator.cli import options
from orchestrator.cli.options import OUTPUT, PANELS, Group, Output, check_format, print_error
from orchestrator.cli.running import show_or_run
from orchestrator.operations import resume as operation
from orchestrator.operations.resume import Changes
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import NODES, PRECISION, RESTARTS, TRAINING
from orchestrator.targets.interface import RunHandle

CHANGES: Mapping[str, ParameterInfo] = {
    "nodes": PANELS[NODES]["nodes"],
    "exclude": PANELS[NODES]["exclude"],
    "ppn": typer.Option(metavar="N|auto", help="Ranks per node."),
    "precision": PANELS[PRECISION]["precision"],
    "max_restarts": PANELS[RESTARTS]["max_restarts"],
    "env": PANELS[TRAINING]["env"],
    "wait_for_cores": PANELS[NODES]["wait_for_cores"],
    "code": typer.Option(
        "--code", help="Send the files of the project that have changed. Files that the run has written are kept."
    ),
    "force": typer.Option(
        "--force",
        help="Continue although the data, the model or the settings have changed, or the files of the run's first node "
        "are not available.",
    ),
}


def resume(changes: Changes, output: Output, run: options.UnfinishedRun = "last") -> None:
    """Start the next attempt of a run that failed, was stopped, lost or preempted.

    It has the same ID, folders and copy of the project, and continues from the newest valid checkpoint. The options
    replace those of the first command.
    """
    check_format(output)
    base = output.runs_dir.absolute()
    runs = operation.find_runs(base, run, print_error)
    plans = tuple(operation.plan(member, changes, base, print_error) for member in runs)
    steps = tuple(step for member in plans for step in member.steps)
    limit = operation.limit_of(runs)
    plan = replace(plans[0], steps=steps, array=plans, max_active=limit) if len(plans) > 1 else plans[0]

    def begin(planned: Plan, folder: Path) -> RunHandle:
        return operation.start(planned, runs, base)

    show_or_run(plan, output, begin)


resume_command = options.make_command(
    resume,
    changes=Group(kind=Changes, panels={"What changes": CHANGES}),
    output=Group(kind=Output, panels={"Output": OUTPUT}),
)
