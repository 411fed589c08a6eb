"""The commands `orch exec`, `orch shell` and `orch nodes`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from orchestrator.cli.options import PANELS, RUNS_DIR, AsJson, RunsDir, print_error
from orchestrator.cli.provision import Inventory
from orchestrator.errors import RequestError
from orchestrator.operations import nodes as operation
from orchestrator.planning.request import NODES
from orchestrator.report import listing
from orchestrator.report.listing import json_text
from orchestrator.report.output_lines import NodeOutput
from orchestrator.screen import print_text
from orchestrator.targets import registry
from orchestrator.targets.interface import CheckRequest

InventoryOrRun = Annotated[
    str,
    typer.Argument(metavar="INVENTORY|ID|last", help="Inventory, or the run whose environment and folder are used."),
]
Stack = Annotated[str, typer.Option(metavar="NAME", help="Stack whose Python comes first in PATH, without a run.")]


def execute(
    source: InventoryOrRun,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and its arguments, after --.")],
    nodes: Annotated[Any, PANELS[NODES]["nodes"]] = None,
    gather: Annotated[bool, typer.Option("--gather", "-b", help="Print identical output once, at the end.")] = False,
    stack: Stack = "current",
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Run a command on all nodes, in the environment of ranks, and print each line with its node.

    The exit code is 0 if the command succeeds on all nodes, and 1 otherwise.
    """
    commands = operation.find_commands(source, nodes, stack=stack, runs_dir=runs_dir, notify=print_error)
    output = NodeOutput(commands.nodes, gather=gather)
    try:
        ends = commands.run(tuple(command), output.receive)
    finally:
        output.end()
    operation.check_ends(ends)


NodeName = Annotated[str | None, typer.Option("--node", metavar="NAME", help="Node. Default: the first one.")]


def shell(
    source: InventoryOrRun, node: NodeName = None, stack: Stack = "current", runs_dir: RunsDir = RUNS_DIR
) -> None:
    """Open a shell on a node, in the environment of ranks."""
    if not sys.stdin.isatty():
        raise RequestError("orch shell needs a terminal.", hint=f"Without one: orch exec {source} -- COMMAND.")
    commands = operation.find_commands(source, node or None, stack=stack, runs_dir=runs_dir, notify=print_error)
    program, *arguments = commands.shell()
    os.execvp(program, [program, *arguments])


Live = Annotated[bool, typer.Option("--live", help="Query the nodes: load, free memory, and runs that use them.")]


def nodes(inventory: Inventory, live: Live = False, as_json: AsJson = False) -> None:
    """List the nodes of an inventory, as recorded by `orch provision`."""
    target = registry.target_at(inventory)
    rows = [operation.live_row(node) for node in target.live_nodes(inventory)] if live else operation.rows(inventory)
    all_columns = operation.LIVE_COLUMNS if live else operation.COLUMNS
    columns = [name for name in all_columns if name != "gpus" or any(row[name] for row in rows)]
    cells = [{name: "-" if row[name] is None else row[name] for name in columns} for row in rows]
    print_text(json_text("nodes", nodes=rows) if as_json else listing.table(cells, columns))
    if live:
        return
    for line in listing.finding_lines(target.check(CheckRequest(inventory=inventory))):
        print_error(line)
