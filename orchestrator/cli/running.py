"""Print a plan, or run it and print its outcome."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from orch_node.protocol.outcome import DONE, FAILED, REFUSED

from orchestrator.cli import arrays
from orchestrator.cli.options import RUNS_DIR, print_error
from orchestrator.cli.output import Output
from orchestrator.planning.plan import Plan
from orchestrator.screen import closed_output, print_text

if TYPE_CHECKING:
    from orchestrator.report.live import Screen
    from orchestrator.runs.outcome import Outcome
    from orchestrator.targets.interface import RunHandle

FORCE_HINT = "(Ctrl-C again: end all processes now; --detach starts runs that survive Ctrl-C)"


def show_or_run(plan: Plan, output: Output, begin: Callable[[Plan, Path], RunHandle]) -> None:
    """Print a plan, or start it and watch the run.

    Args:
        plan: The plan.
        output: Output options.
        begin: Starts the plan and records it in a folder.

    Raises:
        typer.Exit: With the run's exit code, when the run has ended.
    """
    from orchestrator.operations.output import check_shown
    from orchestrator.report import plans

    check_shown(output.show, plan.layout.world_size)
    if output.dry_run:
        print_text(plans.as_json(plan) if output.json else plan.describe(), nl=output.json, program=True)
        return
    from orchestrator.report import decided, live
    from orchestrator.runs import store

    screen = live.Screen(of_ranks=output.show)
    if output.wait:  # CI systems and systemd end a command with SIGTERM; handle it like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        handle = begin(plan, output.runs_dir.absolute() / plan.run.run_id)
    except KeyboardInterrupt:
        stop_started(plan, output.runs_dir.absolute())
        raise
    if plan.array:
        arrays.follow(plan, output.runs_dir.absolute(), as_json=output.json, wait=output.wait)
        return
    handle.notify = screen.note
    if not output.wait:
        handle.started()
        if store.load(handle.folder).state in (REFUSED, FAILED):
            end_command(handle, print_outcome(handle, handle.finish(), shown="none", as_json=output.json))
        print_text(plans.started_as_json(plan) if output.json else plans.started(plan))
        return
    screen.begin([*decided.lines(plan, verbose=output.verbose), *file_lines(handle)])

    def interrupted() -> None:
        try:
            screen.note(f"interrupted: stopping all ranks {FORCE_HINT}")
            handle.interrupt()
        except KeyboardInterrupt:
            screen.note("interrupted again: ending all processes of the run now")
            handle.stop()

    end_command(handle, watch(handle, screen, as_json=output.json, interrupted=interrupted))


def end_command(handle: RunHandle, outcome: Outcome) -> NoReturn:
    """End the program with the exit code of a run that has ended; a refused run leaves no files."""
    if outcome.state == REFUSED:
        handle.discard()
    raise typer.Exit(outcome.exit_code)


def stop_started(plan: Plan, base: Path) -> None:
    """Stop what an interrupted start of a plan has recorded in the folder `base` of all runs."""
    from orchestrator.operations.runs import recorded_handles
    from orchestrator.report import cleanup
    from orchestrator.runs import store

    for handle in recorded_handles(plan, base, print_error):
        before = store.load(handle.folder).state
        report = handle.stop()
        print_error(cleanup.describe_stop(report, before=before, after=store.load(handle.folder).state))


def watch(handle: RunHandle, screen: Screen, *, as_json: bool, interrupted: Callable[[], None]) -> Outcome:
    """Show a run until it ends or Ctrl-C is pressed; print and return its outcome."""
    from orchestrator.operations.output import RanksOutput

    lines = RanksOutput(handle, screen.of_ranks, screen.lines, screen.note)
    run = handle.record.run_id
    closed_output.message = f"The output is closed. Run {run} continues: orch attach {run}"
    try:
        for event in handle.events():
            lines.begin()
            screen.show(event)
    except KeyboardInterrupt:
        closed_output.is_ignored = True  # Ctrl-C also ends the `tee` behind this program
        interrupted()
    closed_output.message = ""
    outcome = handle.finish()
    is_complete = lines.end()
    if not is_complete:
        screen.note(f"the output shown here is incomplete; all of it: orch logs {handle.record.run_id}")
    screen.end()
    return print_outcome(handle, outcome, shown=screen.of_ranks if is_complete else "none", as_json=as_json)


def print_outcome(handle: RunHandle, outcome: Outcome, *, shown: str, as_json: bool) -> Outcome:
    """Print and return the outcome of a run; `shown` is the rank whose output is on the screen already."""
    from orchestrator.report import training

    with_files = outcome.state != DONE  # the first lines have named them
    print_text(training.as_json(outcome) if as_json else training.text(outcome, shown=shown, with_files=with_files))
    if not as_json:
        for line in (output_line(handle, outcome), next_command(outcome)):
            if line:
                print_text(line)
    return outcome


def file_lines(handle: RunHandle) -> list[str]:
    """Return where the files of the run are on this machine and on the nodes."""
    folder, run_dir = str(handle.folder), handle.record.run_dir
    line = f"files: {folder}"
    return [line] if folder == run_dir else [f"files on the nodes: {run_dir}", line]


def output_line(handle: RunHandle, outcome: Outcome) -> str:
    """Return where a run has written its model and how to fetch it, or '' if that is unknown."""
    from orchestrator.operations.fetch import find_output

    output, node = find_output(handle), handle.record.nodes[0]
    if outcome.state != DONE or not output:
        return ""
    if not node.via and not handle.record.location:
        return f"output: {output}" if Path(output).is_dir() else ""  # the script may write elsewhere
    return f"output on the nodes: {output}; to copy it here: orch fetch {outcome.run_id}{runs_dir_option(outcome)}"


def next_command(outcome: Outcome) -> str:
    """Return the command that shows details about an ended run, or ''."""
    command = {"done": "report", "failed": "logs"}.get(outcome.state)
    return f"details: orch {command} {outcome.run_id}{runs_dir_option(outcome)}" if command else ""


def runs_dir_option(outcome: Outcome) -> str:
    """Return the option that names the folder of a run, or '' for the default."""
    base = outcome.folder.parent
    return "" if base == RUNS_DIR.absolute() else f" --runs-dir {shlex.quote(str(base))}"
