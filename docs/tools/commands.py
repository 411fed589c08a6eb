"""orch's commands and options as a page, from the code."""

from __future__ import annotations

import html
from collections.abc import Iterator

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.cli.main import app

HEAD = """# Command line

Made from the code: what `orch COMMAND --help` prints.
"""


def page() -> str:
    command = typer.main.get_command(app)
    return "\n".join([HEAD, *told(command, typer.Context(command, info_name="orch"))])


def told(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    """A command, then those below it."""
    for name, one in sorted(getattr(command, "commands", {}).items()):
        below = typer.Context(one, info_name=name, parent=context)
        yield f"## {below.command_path}\n"
        yield f"{(one.help or '').strip()}\n"
        words = " ".join(one.collect_usage_pieces(below))
        yield f"```text\n{below.command_path} {words}\n```\n"
        yield from options(one, below)
        yield from told(one, below)


def options(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    rows = [one.get_help_record(context) for one in command.params]
    found = [row for row in rows if row and row[0] != "-h, --help"]
    if found:
        yield "| option | |\n| --- | --- |"
        yield from (f"| <code>{cell(name)}</code> | {cell(words)} |" for name, words in found)
        yield ""


def cell(text: str) -> str:
    """As HTML: a pipe would end the cell, in code too."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;")
