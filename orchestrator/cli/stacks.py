"""`orch stacks`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson

app = typer.Typer(help="The sets of versions that fit together.", invoke_without_command=True)


@app.callback()
def stacks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the stacks."""
    from orchestrator import load
    from orchestrator.report import listing

    if context.invoked_subcommand:
        return
    found = [load.stack(name) for name in load.stack_names()]
    rows = [
        {
            "name": s.name,
            "summary": s.summary,
            "python": s.python,
            "torch": s.requirements["torch"],
            "backends": list(s.backends),
        }
        for s in found
    ]
    typer.echo(listing.as_json("stacks", rows) if as_json else listing.table(rows, tuple(rows[0])))


@app.command()
def requirements(
    name: str,
    without_dependencies: Annotated[
        bool,
        typer.Option("--without-dependencies", help="Only those that pip installs with --no-deps."),
    ] = False,
) -> None:
    """Print a stack's packages as a requirements file for pip."""
    from orchestrator import load

    stack = load.stack(name)
    for package, version in stack.requirements.items():
        if (package in stack.without_dependencies) == without_dependencies:
            typer.echo(f"{package}=={version}")
