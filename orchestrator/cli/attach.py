"""`orch attach`, `orch stop`, `orch logs`, `orch clean`: runs that live, or should not."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, SHOW, AsJson, OfInventory, RunName, RunsDir, complain
from orchestrator.screen import say

if TYPE_CHECKING:
    from orchestrator.runs.logs import LogLine


def attach(
    run: RunName = "last",
    inventory: OfInventory = None,
    show: Annotated[str, SHOW] = "0",
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run again, until it ends. Ctrl-C leaves it alone."""
    from orchestrator.cli.running import file_lines, watch
    from orchestrator.operations.find import find
    from orchestrator.operations.output import check_shown
    from orchestrator.report import live

    screen = live.Screen(of_ranks=show)
    handle = find(runs_dir, run, inventory, screen.note)
    record = handle.record
    check_shown(show, len(record.layout))
    screen.begin([f"run: {record.run_id}", *file_lines(handle)])

    def interrupted() -> None:
        screen.end()
        screen.note(f"the run goes on; orch stop {record.run_id} ends it")
        raise typer.Exit(130) from None

    outcome = watch(handle, screen, as_json=as_json, interrupted=interrupted)
    raise typer.Exit(outcome.exit_code)


def stop(
    run: RunName = "last", inventory: OfInventory = None, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False
) -> None:
    """End all processes of a run on all its nodes, and only these; exit code 1 if one is left.

    Without an ID, the newest run that has not ended is stopped.
    """
    from orchestrator.operations import runs as operation
    from orchestrator.report import cleanup
    from orchestrator.runs import store

    handle, others = operation.find_live(runs_dir, run, inventory, complain)
    before = store.load(handle.folder).state
    done = handle.stop()
    if as_json:
        say(cleanup.as_json("stop", done, not_stopped=others))
    else:
        after = store.load(handle.folder).state
        say(f"{cleanup.describe_stop(done, before=before, after=after)}\n{cleanup.text(done)}")
        if others:
            say(f"Not stopped: {', '.join(others)}. `orch stop ID` stops one.")
    raise typer.Exit(done.exit_code)


def clean(
    inventory: OfInventory = None,
    check: Annotated[bool, typer.Option("--check", help="End nothing; exit code 1 if there is something.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """End what past runs have left: processes, and segments in /dev/shm."""
    from orchestrator.operations import clean as operation
    from orchestrator.report import cleanup

    done = operation.clean(runs_dir, inventory, look=check)
    say(cleanup.as_json("clean", done) if as_json else cleanup.text(done))
    raise typer.Exit(done.exit_code)


def logs(
    run: RunName = "last",
    rank: Annotated[int | None, typer.Option(metavar="RANK", help="Only this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until the run ends.")] = False,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.")] = None,
    inventory: OfInventory = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the logs of a run's ranks from all nodes, each line with its rank and node."""
    from orchestrator.operations import logs as operation
    from orchestrator.operations.find import find

    pattern = operation.compiled(grep)
    handle = find(runs_dir, run, inventory, complain)
    lines = operation.lines(handle, pattern, rank=rank, follow=follow)
    try:
        if as_json:
            print_json(lines)
        else:
            print_lines(lines)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_json(lines: Iterable[LogLine]) -> None:
    """Print each line, as it was, as a JSON object."""
    from orchestrator.report.listing import SCHEMA

    for line in lines:
        record = {"schema": SCHEMA, "kind": "line", "rank": line.rank, "node": line.node}
        if line.finished:
            say(json.dumps({**record, "line": line.text}))


def print_lines(lines: Iterable[LogLine]) -> None:
    """Print each line as a terminal shows it; on a terminal, unfinished ones in place below."""
    from rich.live import Live

    from orchestrator.report.rank_lines import RankLines
    from orchestrator.screen import console

    screen = console(stderr=False)
    in_place = sys.stdout.isatty() and not screen.is_dumb_terminal
    shown = RankLines(screen.print if in_place else say, lambda line: f"[{line.rank} {line.node}] ", in_place=in_place)
    with Live(shown, console=screen, transient=True) if in_place else contextlib.nullcontext():
        for line in lines:
            shown.add((line,))
