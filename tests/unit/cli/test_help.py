"""The help of every command names each value and shows no value for a flag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.main import app

NAME = re.compile(r"(-- )?[A-Za-z0-9]+([_=|,. ][A-Za-z0-9]+)*")


def commands(command: Any, command_path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield command_path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*command_path, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_names_no_types(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="orch")
    assert done.exit_code == 0, done.exception
    assert re.findall(r"<[^>]*>|[{}]|\[\[|\]\]", done.stdout) == []
    assert "Usage: " + " ".join(["orch", *words]) in done.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_each_value_has_a_name(words: tuple[str, ...]) -> None:
    """Show `--stack NAME` for an option with a value and only the name for a flag."""
    command = ALL[words]
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            assert parameter.metavar == "", parameter.name
        else:
            assert NAME.fullmatch(parameter.metavar or ""), f"{parameter.name}: {parameter.metavar}"
