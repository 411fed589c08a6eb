"""The help of all commands has one shape: a name for each value, nothing beside a flag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.main import app

NAME = re.compile(r"(-- )?[A-Za-z0-9]+([_=|,. ][A-Za-z0-9]+)*")


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*words, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_names_no_types(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="orch")
    assert done.exit_code == 0, done.exception
    assert re.findall(r"<[^>]*>|[{}]|\[\[|\]\]", done.stdout) == []
    assert "Usage: " + " ".join(["orch", *words]) in done.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_each_value_has_a_name(words: tuple[str, ...]) -> None:
    """So that one reads `--stack NAME`, and no flag seems to want a value."""
    command = ALL[words]
    for one in command.get_params(typer.Context(command)):
        if getattr(one, "is_flag", False):
            assert one.metavar == "", one.name
        else:
            assert NAME.fullmatch(one.metavar or ""), f"{one.name}: {one.metavar}"
