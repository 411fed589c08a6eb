"""The help of every command names each value and shows no value for a flag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.main import make_app

NAME = re.compile(r"(-- )?[A-Za-z0-9]+([_=|,. ][A-Za-z0-9]+)*")


def commands(command: Any, command_path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield command_path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*command_path, name))


COMMANDS = dict(commands(typer.main.get_command(make_app())))


@pytest.mark.parametrize("command_path", COMMANDS, ids=" ".join)
def test_help_names_values_and_no_types(command_path: tuple[str, ...]) -> None:
    """Show `--stack NAME` for an option with a value and only the name for a flag."""
    result = CliRunner().invoke(make_app(), [*command_path, "--help"], prog_name="orch")
    assert result.exit_code == 0, result.exception
    assert re.findall(r"<[^>]*>|[{}]|\[\[|\]\]", result.stdout) == []
    assert "Usage: " + " ".join(["orch", *command_path]) in result.stdout
    command = COMMANDS[command_path]
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            assert parameter.metavar == "", parameter.name
        else:
            assert NAME.fullmatch(parameter.metavar or ""), f"{parameter.name}: {parameter.metavar}"
