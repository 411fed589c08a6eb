"""The command `orch stacks`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, check_subcommand, print_error
from orchestrator.errors import RequestError
from orchestrator.operations import stacks as operation
from orchestrator.report import listing
from orchestrator.report import stacks as report
from orchestrator.screen import print_text

app = App(help="List and check stacks: sets of compatible versions.", invoke_without_command=True)


def complete_names(incomplete: str) -> list[str]:
    return [name for name in load.stack_names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_names)]
ForBackend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Only what this backend needs. Default: all backends.")
]


@app.callback()
def stacks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the stacks with their versions, and whether they work on this machine."""
    if context.invoked_subcommand:
        check_subcommand(context)
        return
    stacks, platform = load.all_stacks(), operation.local_platform()
    rows = [report.row(stack, platform) for stack in stacks]
    print_text(listing.as_json("stacks", rows) if as_json else report.listing(stacks, platform))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a stack in detail, each fact with its source."""
    stack, platform = load.stack(name), operation.local_platform()
    print_text(report.as_json(stack, platform) if as_json else report.describe(stack, platform))


@app.command()
def check(
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Stack to compare with. Default: only check that the versions are compatible.",
            autocompletion=complete_names,
        ),
    ] = None,
    inventory: Annotated[
        str | None, typer.Option(metavar="INVENTORY", help="Check the nodes of this inventory instead.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PROGRAM", help="Interpreter of the environment. Default: the one that runs orch."),
    ] = None,
    backend: ForBackend = None,
    shell: Annotated[
        bool, typer.Option("--shell", help="Also check this shell, for ranks that are started without orch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an environment and print every mismatch with its fix.

    The exit code is 1 if there is a mismatch.
    """
    if inventory and (python or shell):
        raise RequestError(
            "--inventory checks nodes; --python and --shell check this machine.",
            hint="Omit --inventory, or --python and --shell.",
        )
    if backend and not stack:
        raise RequestError("--backend requires --stack.", hint="Add --stack NAME, or omit --backend.")
    environments = (
        operation.environments_of(inventory, print_error)
        if inventory
        else [operation.environment_of(python or sys.executable, shell=shell)]  # nosec
    )
    checked = operation.check(environments, operation.expected_stack(stack, backend))
    print_text(report.checked_as_json(checked) if as_json else report.checked_as_text(checked))
    if any(mismatches for _, _, mismatches in checked):
        raise typer.Exit(1)


@app.command()
def requirements(
    name: Name,
    without_dependencies: Annotated[
        bool, typer.Option("--without-dependencies", help="Only packages to install with --no-deps.")
    ] = False,
    backend: ForBackend = None,
) -> None:
    """Print the packages of a stack as a requirements file for pip."""
    stack = load.stack(name).for_listed_backend(backend) if backend else load.stack(name)
    for package, version in stack.requirements.items():
        if (package in stack.without_dependencies) == without_dependencies:
            print_text(f"{package}=={version}")
