"""`orch stacks`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, check_subcommand, complain
from orchestrator.screen import say

app = App(help="Sets of versions that fit together: list, find, check, fetch them.", invoke_without_command=True)


def complete_names(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.stack_names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_names)]
ForBackend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Only what this backend needs; default: all.")
]


@app.callback()
def stacks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the stacks: what is in them, and what they need on this machine."""
    from orchestrator import load
    from orchestrator.operations import stacks as operation
    from orchestrator.report import listing
    from orchestrator.report import stacks as report

    if context.invoked_subcommand:
        check_subcommand(context)
        return
    found, here = load.all_stacks(), operation.here()
    rows = [report.row(stack, here) for stack in found]
    say(listing.as_json("stacks", rows) if as_json else report.listing(found, here))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Tell everything about a stack, each fact with its source."""
    from orchestrator import load
    from orchestrator.operations import stacks as operation
    from orchestrator.report import stacks as report

    stack, here = load.stack(name), operation.here()
    say(report.as_json(stack, here) if as_json else report.story(stack, here))


@app.command()
def find(
    torch: Annotated[str | None, typer.Option(metavar="VERSION", help="For example 2.7, or 2.7.0.")] = None,
    ipex: Annotated[str | None, typer.Option(metavar="VERSION", help="Version of IPEX.")] = None,
    bindings: Annotated[str | None, typer.Option(metavar="VERSION", help="Version of oneccl_bind_pt.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the stack with these versions; versions that do not fit together are refused."""
    from orchestrator import load
    from orchestrator.operations import stacks as operation
    from orchestrator.report import stacks as report
    from orchestrator.stacks.matrix import VersionRequest, describe_stack, find_stack

    request = VersionRequest(torch=torch, ipex=ipex, bindings=bindings)
    stack = find_stack(load.all_stacks(), request)
    say(report.as_json(stack, operation.here()) if as_json else describe_stack(stack))


@app.command()
def check(
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment must be this stack; default: it must fit together.",
            autocompletion=complete_names,
        ),
    ] = None,
    inventory: Annotated[
        str | None, typer.Option(metavar="INVENTORY", help="Check the nodes of this inventory instead.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PROGRAM", help="Interpreter of the environment; default: orch's own.")
    ] = None,
    backend: ForBackend = None,
    shell: Annotated[
        bool, typer.Option("--shell", help="Check this shell as well, for ranks that are started without orch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at an environment and name every mismatch, with its cure. Exit 1 if there is one."""
    from orchestrator.errors import RequestError
    from orchestrator.operations import stacks as operation
    from orchestrator.report import stacks as report

    if inventory and (python or shell):
        raise RequestError(
            "--inventory names nodes; --python and --shell are this machine's.",
            hint="Leave --inventory out, or the other two.",
        )
    if backend and not stack:
        raise RequestError("--backend goes with --stack.", hint="Add --stack NAME, or leave --backend out.")
    environments = (
        operation.environments_of(inventory, complain)
        if inventory
        else [operation.environment_of(python or sys.executable, shell=shell)]  # nosec
    )
    checked = operation.check(environments, operation.asked_stack(stack, backend))
    say(report.checked_as_json(checked) if as_json else report.checked_as_text(checked))
    if any(found for _, _, found in checked):
        raise typer.Exit(1)


@app.command()
def fetch(
    name: Name,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The wheelhouse: a folder, made if missing.")],
    find_links: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="A folder or page of wheels, instead of the stack's indexes."),
    ] = None,
    index_url: Annotated[
        str | None, typer.Option(metavar="URL", help="An index, instead of pip's and the stack's.")
    ] = None,
    python_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the nodes, if it is not orch's own: 3.10.")
    ] = None,
    backend: ForBackend = None,
    any_torch: Annotated[bool, typer.Option("--any-torch", help="Take torch's CUDA build if it comes first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download the wheels of a stack, with their hashes, through pip's own configuration."""
    from orchestrator import load
    from orchestrator.operations import wheels as operation
    from orchestrator.report import listing
    from orchestrator.stacks.downloads import WheelSources

    stack = load.stack(name)
    hashes = operation.fetch(
        stack.for_listed_backend(backend) if backend else stack,
        to,
        stacks=load.all_stacks(),
        sources=WheelSources(find_links=tuple(find_links or ()), index_url=index_url),
        python=python_version,
        any_torch=any_torch,
        tell=lambda words: say(words, err=True),
    )
    rows = [{"file": file, "sha256": digest} for file, digest in hashes.items()]
    say(listing.as_json("wheels", rows) if as_json else listing.table(rows, ("file", "sha256")))


@app.command()
def requirements(
    name: Name,
    without_dependencies: Annotated[
        bool, typer.Option("--without-dependencies", help="Only those that pip installs with --no-deps.")
    ] = False,
    backend: ForBackend = None,
) -> None:
    """Print a stack's packages as a requirements file for pip."""
    from orchestrator import load

    stack = load.stack(name).for_listed_backend(backend) if backend else load.stack(name)
    for package, version in stack.requirements.items():
        if (package in stack.without_dependencies) == without_dependencies:
            say(f"{package}=={version}")
