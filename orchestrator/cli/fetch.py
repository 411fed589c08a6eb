"""The command `orch fetch`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, OfInventory, RunName, RunsDir, print_error
from orchestrator.model.printable import counted
from orchestrator.operations import fetch as operation
from orchestrator.operations.runs import find
from orchestrator.report.listing import json_text
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.screen import console, escape_control_chars, print_text
from orchestrator.targets.interface import FetchRequest

PROGRESS_SECONDS = 5.0  # between lines with the size, where there is no terminal


def fetch(
    run: RunName = "last",
    inventory: OfInventory = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PATTERN",
            help="Only matching files or folders, such as model or 'checkpoint-*'; may be repeated.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FOLDER", help="Folder, relative to the output unless absolute. Default: all output."
        ),
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Node to copy from. Default: all nodes.")] = None,
    destination: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Destination. Default: output/ or code/ in the run's folder."),
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Copy the project of your own script as it was sent, not the output.")
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy a run's checkpoints and output to this machine and verify their hashes.

    Files of other nodes that differ from node0's are stored in folders with the names of their nodes.

    Run the same command again to resume an interrupted copy.
    """
    handle = find(runs_dir, run, inventory, print_error)
    request = FetchRequest(source=source or "", node=node, destination=destination, patterns=tuple(patterns or ()))
    with Bar() as bar:
        operate = operation.fetch_code if code else operation.fetch
        fetched = operate(handle, request, bar.listener())
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
        print_text(
            f"{counted(len(fetched.files), 'file')} ({size / 2**20:.1f} MiB, {len(fetched.downloaded)} new) "
            f"in {fetched.folder}{unchanged if fetched.unchanged else ''}"
        )
    for entry in fetched.skipped:
        print_error(f"skipped: {escape_control_chars(entry.path)}: {entry.problem}")


class Bar:
    """A progress display on standard error: a bar on a terminal, otherwise one line per file."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not sys.stderr.isatty(),
        )
        self.done = self.total = 0  # bytes
        self.shown = time.monotonic()
        self.task = self.progress.add_task("listing", total=None)

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def listener(self) -> FetchListener:
        return FetchListener(total=self.begin_node, file=self.begin, advance=self.advance)

    def begin_node(self, files: int, size: int) -> None:
        """Add the files of a node to the total."""
        self.total += size
        self.progress.update(self.task, total=self.total, description=counted(files, "file"))

    def begin(self, path: str, size: int) -> None:
        if self.progress.disable:
            self.console.print(escape_control_chars(path), soft_wrap=True, markup=False, highlight=False)
        else:
            self.progress.update(self.task, description=escape_control_chars(path))

    def advance(self, size: int) -> None:
        self.done += size
        self.progress.advance(self.task, size)
        if self.progress.disable and time.monotonic() - self.shown > PROGRESS_SECONDS:
            self.shown = time.monotonic()
            self.console.print(f"{self.done / 2**20:.0f} of {self.total / 2**20:.0f} MiB")
