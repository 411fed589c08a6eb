"""Print a plan, or run it and print its outcome, or those of all runs of an array."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NoReturn

import typer
from orch_node.protocol.outcome import DONE, FAILED, REFUSED

from orchestrator.cli.options import Output, print_error
from orchestrator.errors import RequestError
from orchestrator.operations import queue, runs, train
from orchestrator.operations.output import RanksOutput, check_shown
from orchestrator.planning.plan import ApplyObjects, Plan, SubmitScript
from orchestrator.report import cleanup, live, plans, run_list, training
from orchestrator.report.listing import json_text
from orchestrator.runs import store
from orchestrator.runs.outcome import RunOutcome, outcome_of
from orchestrator.runs.store import Run
from orchestrator.screen import closed_output, print_text
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle

QUESTION = "interrupted: stop the run, detach from it or continue? [s/d/c; Ctrl-C: stop] "
CHECK_SECONDS = 2.0  # between two checks whether the run has ended, while its user is asked
FORCE_HINT = "a second Ctrl-C or SIGTERM: end all processes now; --detach starts runs that survive both"


def show_or_run(plan: Plan, output: Output, resumed: Sequence[Run] = (), notes: Sequence[str] = ()) -> None:
    """Print a plan, or start it and watch the run.

    Args:
        plan: the plan.
        output: output options.
        resumed: the recorded runs whose next attempts are planned.
        notes: lines to print, after the project is sent: its hash is planned, and this output may go to a file in it.

    Raises:
        typer.Exit: With the run's exit code, when the run has ended.
    """
    if output.show != "0":  # every run has this rank
        check_shown(output.show, len(plan.run.layout))
    if output.dry_run or output.format:
        print_notes(notes)
        show(plan, output)
        return
    screen, base = live.Screen(of_ranks=output.show, keeps_stdout=output.as_json), output.runs_dir.absolute()
    if output.wait:  # CI systems and systemd end a command with SIGTERM; handle it like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        handle = train.start(plan, base, resumed)
    except KeyboardInterrupt:
        stop_started(plan, base)
        raise
    print_notes(notes)
    if plan.array:
        follow_array(plan, base, as_json=output.as_json, wait=output.wait)
        return
    handle.notify = screen.note
    if not output.wait:
        handle.started()
        if store.load(handle.folder).state in (REFUSED, FAILED):
            end_command(
                handle, print_outcome(handle, handle.finish(), shown="none", as_json=output.as_json, with_files=True)
            )
        print_text(plans.started_as_json(plan) if output.as_json else plans.started(plan, base), err=not output.as_json)
        return
    screen.begin([run_line(handle), *plans.decision_lines(plan, verbose=output.verbose)])

    def interrupted() -> None:
        try:
            screen.note(f"interrupted: stopping all ranks ({FORCE_HINT})")
            handle.interrupt()
        except KeyboardInterrupt:
            screen.note("interrupted again: ending all processes of the run now")
            screen.note(stop_run(handle))

    ask_at_interrupt(handle, screen)
    end_command(handle, watch(handle, screen, as_json=output.as_json, interrupted=interrupted))


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print_error(note)


def show(plan: Plan, output: Output) -> None:
    """Print a plan; print on standard error what precedes the submission of a script.

    Raises:
        RequestError: if the format contradicts other options, or a manifest is requested and the plan is a script.
    """
    if output.format and (output.as_json or not output.dry_run):
        conflict = "does not work with --json" if output.as_json else "requires --dry-run"
        raise RequestError(f"-o {output.format} {conflict}.", hint=f"To print the plan: --dry-run -o {output.format}.")
    if output.format == "yaml" and not all(isinstance(step, ApplyObjects) for step in plan.steps):
        targets = [f"--on {target.options.on}" for target in registry.entries().values() if target.has_manifest]
        raise RequestError.about("manifest-of-script", targets=" or ".join(targets))
    if output.format is None:
        print_text(plans.as_json(plan) if output.as_json else plans.outline(plan), program=output.as_json)
        return
    print_text(plan.describe(), nl=False, program=True)
    before = [step for step in plan.steps if not isinstance(step, SubmitScript)]
    for step in before if len(before) < len(plan.steps) else ():
        print_error(f"note: before orch submits this script: {step.title()}")


def ask_at_interrupt(handle: RunHandle, screen: live.Screen) -> None:
    """Let Ctrl-C on a terminal ask what to do with a run on nodes; a second Ctrl-C raises KeyboardInterrupt as usual.

    The command ends if the user detaches from the run.
    """

    def handle_interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.progress.stop()
        while (answer := read_answer(handle.folder)) not in ("d", "c"):
            if answer in ("s", None):
                raise KeyboardInterrupt
        if answer == "d" and not has_ended(handle.folder):
            run, arguments = handle.record.run_id, store.cli_arguments(handle.folder)
            screen.note(f"run {run} continues; to watch it: orch attach {arguments}, to stop it: orch stop {arguments}")
            raise typer.Exit(0)
        screen.progress.start()
        signal.signal(signal.SIGINT, handle_interrupt)

    if os.isatty(0) and os.isatty(2) and not runs.has_output_here(handle.record):
        signal.signal(signal.SIGINT, handle_interrupt)


def read_answer(folder: Path) -> str | None:
    """Ask what to do with a run and return the first letter of the answer, or None if standard input ends.

    If the run ends before there is an answer, return `c`.
    """
    print_text(QUESTION, err=True, nl=False)
    while not select.select([sys.stdin], [], [], CHECK_SECONDS)[0]:
        if has_ended(folder):
            print_text("", err=True)
            return "c"
    line = sys.stdin.readline()
    return line.strip()[:1].lower() if line else None


def has_ended(folder: Path) -> bool:
    """Return whether a run has ended, as its nodes report now; the connections of its handle may be in use."""
    runs.refresh([store.load(folder)])
    return store.load(folder).has_ended


def end_command(handle: RunHandle, outcome: RunOutcome) -> NoReturn:
    """End the program with the exit code of a run; one that was refused before its first attempt leaves no files."""
    if outcome.state == REFUSED and not store.was_launched(store.load(handle.folder)):
        handle.discard()
    raise typer.Exit(outcome.exit_code)


def stop_started(plan: Plan, base: Path) -> None:
    """Stop what an interrupted start of a plan has recorded in the folder `base` of all runs."""
    for handle in runs.handles_of(plan, base, print_error):
        if store.load(handle.folder).outcome is None:
            print_error(stop_run(handle))


def stop_run(handle: RunHandle) -> str:
    """Stop a run, and return a sentence that says whether something of it remains."""
    before = store.load(handle.folder).state
    report = handle.stop()
    return cleanup.describe_stop(report, before=before, after=store.load(handle.folder).state)


def watch(handle: RunHandle, screen: live.Screen, *, as_json: bool, interrupted: Callable[[], None]) -> RunOutcome:
    """Show a run until it ends or Ctrl-C is pressed; print and return its outcome."""
    lines = RanksOutput(handle, screen)
    run, arguments = handle.record.run_id, store.cli_arguments(handle.folder)
    closed_output.message = f"The output is closed. Run {run} continues: orch attach {arguments}"
    try:
        lines.follow()
    except KeyboardInterrupt:
        closed_output.is_ignored = True  # Ctrl-C also ends the `tee` behind this program
        interrupted()
    closed_output.message = ""
    outcome = handle.finish()
    is_complete = lines.end()
    if not is_complete:
        screen.note(f"the output shown here is incomplete; all of it: orch logs {arguments}")
    screen.end()
    shown = screen.of_ranks if is_complete else "none"
    return print_outcome(handle, outcome, shown=shown, as_json=as_json, with_files=False)


def print_outcome(handle: RunHandle, outcome: RunOutcome, *, shown: str, as_json: bool, with_files: bool) -> RunOutcome:
    """Print and return the outcome of a run; only JSON goes to standard output.

    Args:
        handle: the run.
        outcome: its outcome.
        shown: the rank whose output is on the screen already, `all` or `none`.
        as_json: whether to print JSON.
        with_files: whether to name the run's folder, because no line before has named it.
    """
    if as_json:
        print_text(training.as_json(outcome))
        return outcome
    for line in (training.text(outcome, shown=shown, with_files=with_files), *end_lines(handle, outcome)):
        print_text(line, err=True)
    return outcome


def run_line(handle: RunHandle) -> str:
    """Return the id of a run, and the folders of its files on this machine and on the nodes."""
    run, folder = handle.record.run_id, PurePosixPath(handle.record.run_dir)
    on_nodes = f", on the nodes in {folder.parent if folder.name == run else folder}"
    return f"run: {run} in {handle.folder.parent}{'' if is_shared(handle) else on_nodes}"


def is_shared(handle: RunHandle) -> bool:
    """Return whether the run has the same folder on the nodes as on this machine."""
    return str(handle.folder) == handle.record.run_dir


def end_lines(handle: RunHandle, outcome: RunOutcome) -> list[str]:
    """Return where an ended run has written its model, and the commands that fetch it, show details and resume it.

    They name the run: another one may be the last by then.
    """
    output = runs.find_output(handle) if outcome.state == DONE else None
    arguments, lines = store.cli_arguments(outcome.folder), []
    # Nodes of a batch system may share the run's folder with this machine.
    if output and (runs.has_output_here(handle.record) or is_shared(handle)) and Path(output).is_dir():
        lines.append(f"output: {output}")
    elif output and not runs.has_output_here(handle.record):
        lines.append(f"output on the nodes: {output}; to copy it here: orch fetch {arguments}")
    if command := {"done": "report", "failed": "logs"}.get(outcome.state):
        lines.append(f"details: orch {command} {arguments}")
    if store.can_resume(store.load(handle.folder)):
        lines.append(f"resume: orch resume {arguments}")
    return lines


def follow_array(plan: Plan, base: Path, *, as_json: bool, wait: bool) -> None:
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
    array = names[0].rpartition("-")[0]
    started = "\n".join(f"submitted {name}" for name in names)
    waits = plan.request.wait_for_cores
    handles = [] if waits else runs.handles_of(plan, base, print_error)
    if not wait:
        for handle in handles[:1]:
            handle.started()
        text = f"{started}\n{plans.started(plan, base)}"
        print_text(json_text("started", runs=names) if as_json else text, err=not as_json)
        return
    print_error(started)
    outcomes = []
    try:
        for outcome in queue.follow(base, names, print_error) if waits else runs.follow_array(handles, print_error):
            print_error(run_list.array_line(outcome))
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print_error("interrupted: stopping all runs")
        ended = {outcome.run_id for outcome in outcomes}
        unfinished = [name for name in names if name not in ended]
        if waits:
            queue.stop(base / array)
            outcomes += [outcome_of(store.load(base / name)) for name in unfinished]
        else:
            outcomes += runs.interrupt_all(handles, unfinished)
    outcomes.sort(key=lambda outcome: names.index(outcome.run_id))
    code = runs.array_exit_code(outcomes)
    print_text(run_list.array_json(outcomes, code) if as_json else run_list.array_text(outcomes), err=not as_json)
    if any(store.can_resume(store.load(outcome.folder)) for outcome in outcomes):
        print_error(f"resume: orch resume {store.cli_arguments(base / array)}")
    raise typer.Exit(code)
