"""The commands `orch attach`, `orch stop`, `orch logs`, `orch fetch` and `orch clean`."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from orch_node.protocol.outcome import STOPPED
from orch_node.streams import STDERR

from orchestrator.cli.options import RUNS_DIR, SHOW, AsJson, OfInventory, RunName, RunsDir, UnfinishedRun, print_error
from orchestrator.cli.running import run_line, watch
from orchestrator.model.printable import counted
from orchestrator.operations import output, queue
from orchestrator.operations import runs as operation
from orchestrator.report import cleanup, live
from orchestrator.report.listing import SCHEMA, json_text
from orchestrator.report.output_lines import RankLines
from orchestrator.runs import store
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.screen import console, escape_control_chars, print_text
from orchestrator.targets.interface import FetchRequest


def attach(
    run: RunName = "last",
    inventory: OfInventory = None,
    show: Annotated[str, SHOW] = "0",
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run until it ends. Ctrl-C detaches and does not stop the run."""
    screen = live.Screen(of_ranks=show, keeps_stdout=as_json)
    handle = operation.find(runs_dir, run, inventory, screen.note)
    output.check_shown(show, len(handle.record.layout))
    screen.begin([run_line(handle)])

    def interrupted() -> None:
        screen.end()
        screen.note(f"the run continues; to stop it: orch stop {store.cli_arguments(handle.folder)}")
        raise typer.Exit(130) from None

    raise typer.Exit(watch(handle, screen, as_json=as_json, interrupted=interrupted).exit_code)


def stop(
    run: UnfinishedRun = "last", inventory: OfInventory = None, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False
) -> None:
    """Stop a run: end its processes, and no others, on all its nodes.

    The exit code is 1 if a process remains.
    """
    states = {item.id: item.state for item in store.recorded(runs_dir).runs}  # before a queue process stops its run
    if inventory is None and (reports := queue.stop_array(runs_dir.absolute(), run)) is not None:
        code = max((report.exit_code for report in reports), default=0)
        lines = [cleanup.describe_stop(report, before="running", after=STOPPED) for report in reports]
        text = "\n".join(lines or [f"The runs of {run} had already ended."])
        print_text(json_text("stop", array=run, exit_code=code, runs=reports) if as_json else text)
        if not as_json and any(map(store.can_resume, store.members(runs_dir.absolute(), run))):
            print_text(f"resume: orch resume {store.cli_arguments(runs_dir.absolute() / run)}")
        raise typer.Exit(code)
    handle, other_runs = operation.find_live(runs_dir, run, inventory, print_error)
    before = states.get(handle.record.run_id) or store.load(handle.folder).state
    done = handle.stop()
    if as_json:
        print_text(cleanup.as_json("stop", done, not_stopped=other_runs))
    else:
        after = store.load(handle.folder).state
        print_text(f"{cleanup.describe_stop(done, before=before, after=after)}\n{cleanup.text(done)}")
        if other_runs:
            names, option = ", ".join(other_runs), store.runs_dir_option(runs_dir)
            option += f" --inventory {shlex.quote(inventory)}" if inventory else ""
            print_text(f"Not seen to end: {names}. To stop one: orch stop ID{option}")
        if store.can_resume(store.load(handle.folder)):
            print_text(f"resume: orch resume {store.cli_arguments(handle.folder)}")
    raise typer.Exit(done.exit_code)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report leftovers; exit code 1 if there are any.")]


def clean(
    inventory: OfInventory = None, dry_run: DryRun = False, runs_dir: RunsDir = RUNS_DIR, as_json: AsJson = False
) -> None:
    """Remove what ended runs have left behind: processes, segments in /dev/shm, and copies of projects."""
    done = operation.clean(runs_dir, inventory, dry_run=dry_run)
    print_text(cleanup.as_json("clean", done) if as_json else cleanup.text(done))
    raise typer.Exit(done.exit_code)


def logs(
    run: RunName = "last",
    rank: Annotated[int | None, typer.Option(metavar="RANK", help="Only this rank.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only lines that match this expression.")] = None,
    inventory: OfInventory = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the logs of all ranks, each line with its rank and node, to the stream to which the rank wrote it."""
    pattern = output.compile_pattern(grep)
    handle = operation.find(runs_dir, run, inventory, print_error)
    lines = (line for line in handle.logs(rank=rank, follow=follow) if pattern.search(line.text))
    try:
        if as_json:
            for line in (line for line in lines if line.finished):
                head = {"schema": SCHEMA, "kind": "line", "rank": line.rank, "node": line.node, "stream": line.stream}
                print_text(json.dumps({**head, "line": line.text}))
        else:
            shown = RankLines(
                lambda text, stream: print_text(text, err=stream == STDERR),
                lambda line: f"[{line.rank} {line.node}] ",
                is_live=False,
            )
            for line in lines:
                shown.add((line,))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fetch(
    run: RunName = "last",
    inventory: OfInventory = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Only matching paths, such as 'checkpoint-*'; may be repeated."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="FOLDER", help="Folder in the output, or absolute. Default: all.")
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Node to copy from. Default: all nodes.")] = None,
    destination: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Default: output/ or code/ in the run's folder.")
    ] = None,
    code: Annotated[bool, typer.Option("--code", help="Copy the project as it was sent, not the output.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy a run's checkpoints and output to this machine and verify their hashes.

    Files of other nodes that differ from node0's are stored in folders with the names of their nodes.

    Run the same command again to resume an interrupted copy.
    """
    handle = operation.find(runs_dir, run, inventory, print_error)
    request = FetchRequest(source=source or "", node=node, destination=destination, patterns=tuple(patterns or ()))
    with progress_bar() as listener:
        fetched = operation.fetch(handle, request, listener, code=code)
    print_fetched(fetched, as_json=as_json)
    raise typer.Exit(int(not fetched.is_complete))


def print_fetched(fetched: Collected, *, as_json: bool) -> None:
    """Print what was fetched, and what was left out with the reasons."""
    size = sum(entry.size for entry in fetched.files)
    if as_json:
        text = json_text(
            "fetch",
            folder=str(fetched.folder),
            files=len(fetched.files),
            bytes=size,
            brought=fetched.downloaded,
            unchanged=fetched.unchanged,
            omitted=[{"path": entry.path, "problem": entry.problem} for entry in fetched.skipped],
        )
        print_text(text)
    else:
        unchanged = f"; left out {counted(fetched.unchanged, 'file')} as sent, or the same on another node"
        replaced = f", {fetched.replaced} replaced" if fetched.replaced else ""
        print_text(
            f"{counted(len(fetched.files), 'file')} ({size / 2**20:.1f} MiB, {len(fetched.downloaded)} new{replaced}) "
            f"in {fetched.folder}{unchanged if fetched.unchanged else ''}"
        )
    for entry in fetched.skipped:
        print_error(f"skipped: {escape_control_chars(entry.path)}: {entry.problem}")


@contextlib.contextmanager
def progress_bar() -> Iterator[FetchListener]:
    """Show the progress of a copy, all its nodes together; without a terminal, print a line for each file."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=screen, disable=not sys.stderr.isatty())
    task = progress.add_task("listing", total=None)

    def begin_node(files: int, size: int) -> None:
        total = (progress.tasks[0].total or 0) + size
        progress.update(task, total=total, description=counted(files, "file"))

    def begin_file(path: str, size: int) -> None:
        if progress.disable:
            screen.print(escape_control_chars(path), soft_wrap=True, markup=False, highlight=False)
        else:
            progress.update(task, description=escape_control_chars(path))

    with progress:
        yield FetchListener(total=begin_node, file=begin_file, advance=partial(progress.advance, task))
