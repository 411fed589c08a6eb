"""Create the reference page of the command line from the commands and their options."""

from __future__ import annotations

import html
from collections.abc import Iterator

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.cli.main import make_app

HEAD = """# Command line

This page lists all commands of orch with their options. You need it to look up an option without a terminal; `orch
COMMAND --help` prints the same.
"""


def page() -> str:
    command = typer.main.get_command(make_app())
    return "\n".join([HEAD, *describe_subcommands(command, typer.Context(command, info_name="orch"))])


def describe_subcommands(group: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    """Yield the sections of all commands below a group, each followed by its own subcommands."""
    for name, command in sorted(getattr(group, "commands", {}).items()):
        subcontext = typer.Context(command, info_name=name, parent=context)
        yield f"## {subcontext.command_path}\n"
        yield f"{(command.help or '').strip()}\n"
        usage = " ".join(command.collect_usage_pieces(subcontext))
        yield f"```text\n{subcontext.command_path} {usage}\n```\n"
        yield from option_table(command, subcontext)
        yield from describe_subcommands(command, subcontext)


def option_table(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    rows = [parameter.get_help_record(context) for parameter in command.params]
    options = [row for row in rows if row and "--help" not in row[0]]
    if options:
        yield "| option | meaning |\n| --- | --- |"
        yield from (f"| <code>{cell(name)}</code> | {cell(text)} |" for name, text in options)
        yield ""


def cell(text: str) -> str:
    """Escape text for a table cell; a plain pipe would end the cell, even in code."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;")
