"""Every command has a help, which names each value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from orchestrator.cli.main import make_app

NAME = re.compile(r"(-- )?[A-Za-z0-9]+([_=|,. ][A-Za-z0-9]+)*")


def commands(command: Any, command_path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield command_path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*command_path, name))


COMMANDS = dict(commands(typer.main.get_command(make_app())))


def test_help_names_the_value_of_each_option() -> None:
    for command_path in COMMANDS:
        result = CliRunner().invoke(make_app("".join(command_path[:1])), [*command_path, "--help"], prog_name="orch")
        assert result.exit_code == 0, result.exception
        assert "Usage: " + " ".join(["orch", *command_path]) in result.stdout
        for parameter in COMMANDS[command_path].params:
            if not getattr(parameter, "is_flag", False):
                assert NAME.fullmatch(parameter.metavar or ""), f"{parameter.name}: {parameter.metavar}"


def test_help_of_train_shows_some_options_and_help_all_all() -> None:
    shown = {}
    for name in ("--help", "--help-all"):
        text = CliRunner().invoke(make_app("train"), ["train", name], prog_name="orch").stdout
        shown[name] = set(re.findall(r"^│ (--[a-z0-9-]+)", text, re.MULTILINE)) - {"--help", "--help-all"}
    assert 10 < len(shown["--help"]) < 30
    flags = {option for parameter in COMMANDS["train",].params for option in parameter.opts if option[:2] == "--"}
    assert shown["--help-all"] == flags - {"--"}
