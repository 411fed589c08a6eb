"""The commands `orch exec` and `orch shell`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from orchestrator.cli.options import RUNS_DIR, RunsDir, print_error
from orchestrator.errors import RequestError
from orchestrator.operations import commands as operation
from orchestrator.planning.request import NodePattern, parse_nodes
from orchestrator.report.node_output import NodeOutput

InventoryOrRun = Annotated[
    str,
    typer.Argument(metavar="INVENTORY|ID|last", help="Inventory, or the run whose environment and folder are used."),
]
Stack = Annotated[str, typer.Option(metavar="NAME", help="Stack whose Python comes first in PATH, without a run.")]


def execute(
    source: InventoryOrRun,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and its arguments, after --.")],
    nodes: Annotated[
        Any,
        typer.Option(
            metavar="N|PATTERN", parser=parse_nodes, help="Number of nodes, or names, ranges and groups. Default: all."
        ),
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", "-b", help="Print the output at the end, identical output of nodes once.")
    ] = False,
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


def shell(
    source: InventoryOrRun,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Node. Default: the first one.")] = None,
    stack: Stack = "current",
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Open a shell on a node, in the environment of ranks."""
    if not sys.stdin.isatty():
        raise RequestError("orch shell needs a terminal.", hint=f"Without one: orch exec {source} -- COMMAND.")
    commands = operation.find_commands(
        source, NodePattern(node) if node else None, stack=stack, runs_dir=runs_dir, notify=print_error
    )
    program, *arguments = commands.shell()
    os.execvp(program, [program, *arguments])  # nosec
