"""`orch attach`, `orch stop`, `orch logs`, `orch clean`: runs that live, or should not."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.options import (
    RUNS_DIR,
    SHOW,
    AsJson,
    OfInventory,
    RunName,
    RunsDir,
    complain,
)
from orchestrator.screen import say


def attach(
    run: RunName = "last",
    inventory: OfInventory = None,
    show: Annotated[str, SHOW] = "0",
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run again, until it ends. Ctrl-C leaves it alone."""
    from orchestrator.cli.running import watch
    from orchestrator.operations.find import find
    from orchestrator.operations.output import check_shown
    from orchestrator.report import live

    screen = live.Screen(of_ranks=show)
    handle = find(runs_dir, run, inventory, screen.note)
    record = handle.record
    check_shown(show, len(record.layout))
    screen.begin([f"run: {record.run_id}", f"files: {record.run_dir}"])

    def interrupted() -> None:
        screen.end()
        screen.note(f"the run goes on; orch stop {record.run_id} ends it")
        raise typer.Exit(130) from None

    watch(handle, screen, as_json=as_json, interrupted=interrupted)


def stop(
    run: RunName = "last",
    inventory: OfInventory = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """End all processes of a run on all its nodes, and only these; exit code 1 if one is left."""
    from orchestrator.operations.find import find
    from orchestrator.report import cleanup

    done = find(runs_dir, run, inventory, complain).stop()
    say(cleanup.as_json("stop", done) if as_json else cleanup.text(done))
    raise typer.Exit(done.exit_code)


def clean(
    inventory: OfInventory = None,
    check: Annotated[
        bool, typer.Option("--check", help="End nothing; exit code 1 if there is something.")
    ] = False,
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
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, until the run ends.")
    ] = False,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.")
    ] = None,
    inventory: OfInventory = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the logs of a run's ranks from all nodes, each line with its rank and node."""
    from orchestrator.operations import logs as operation
    from orchestrator.operations.find import find
    from orchestrator.report.listing import SCHEMA

    pattern = operation.compiled(grep)
    handle = find(runs_dir, run, inventory, complain)
    try:
        for line in operation.lines(handle, pattern, rank=rank, follow=follow):
            record = {"schema": SCHEMA, "kind": "line", "rank": line.rank, "node": line.node}
            plain = f"[{line.rank} {line.node}] {line.text}"
            say(json.dumps({**record, "line": line.text}) if as_json else plain)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
