"""The program `orch`: registers all commands and turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli.app import HELP_ALL, App, CommandGroup
from orchestrator.errors import OrchError
from orchestrator.operations.stacks import describe_versions
from orchestrator.screen import closed_output, prepare, print_text

# Panels of the help.
START, RUNS, NODES, DEFINITIONS = "Getting started", "Runs", "Nodes and clusters", "Recipes, data and stacks"
STEPS = (
    "On this machine:  orch setup,  orch train bert-qa",
    "On a cluster:  orch init lab HOST...,  orch provision inventory/lab,  "
    "orch train bert-qa --inventory inventory/lab",
    "Preview without running:  orch train ... --dry-run.  Options of a command:  orch COMMAND --help",
)
EXAMPLES = (
    "orch train bert-qa --ppn 2",
    "orch train bert-qa --set num_train_epochs=3 --precision fp32",
    "orch train script.py --inventory inventory/lab --nodes 4 --ppn 4 -- --epochs 3",
)

# Panel of the help -> command -> its function or its group, in orchestrator.cli.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    START: {
        "setup": "provision:setup",
        "init": "provision:init",
        "provision": "provision:provision_command",
        "train": "train:train_command",
    },
    RUNS: {
        "runs": "runs:app",
        "resume": "train:resume_run",
        "attach": "attach:attach",
        "logs": "attach:logs",
        "report": "runs:report",
        "fetch": "attach:fetch",
        "stop": "attach:stop",
    },
    NODES: {
        "nodes": "commands:nodes",
        "bench": "bench:bench_command",
        "exec": "commands:execute",
        "shell": "commands:shell",
        "sync": "provision:sync_command",
        "clean": "attach:clean",
        "k8s": "kubernetes:app",
        "image": "stacks:image_app",
    },
    DEFINITIONS: {"recipes": "recipes:app", "data": "data:app", "stacks": "stacks:app"},
}
HELP = ["-h", "--help"]
SETTINGS: Mapping[str, dict[str, Any]] = {
    "train": {"epilog": "\n\n".join(EXAMPLES), "context_settings": {"help_option_names": [*HELP, HELP_ALL]}}
}


def make_app(name: str = "") -> App:
    """Return the command line with the command `name`, or with all commands if there is no such command.

    The modules of the other commands are not imported, and typer does not inspect their options.
    """
    help_options = {"help_option_names": HELP}
    app = App(
        cls=CommandGroup, epilog="\n\n".join(STEPS), pretty_exceptions_enable=False, context_settings=help_options
    )
    app.callback()(orch)
    has_command = any(name in commands for commands in COMMANDS.values())
    for panel, commands in COMMANDS.items():
        for command, location in commands.items():
            if has_command and command != name:
                continue
            value = pkgutil.resolve_name(f"orchestrator.cli.{location}")
            if isinstance(value, App):
                app.add_typer(value, name=command, rich_help_panel=panel)
            else:
                app.command(command, rich_help_panel=panel, **SETTINGS.get(command, {}))(value)
    return app


VERSION = typer.Option(
    "--version", is_eager=True, callback=lambda is_set: print_version() if is_set else None, help="Show the versions."
)


def orch(version: Annotated[bool, VERSION] = False) -> None:
    """Turn Linux hosts into a CPU training cluster and train PyTorch models on it."""


def print_version() -> None:
    print_text("\n".join(describe_versions()))
    raise typer.Exit


def main() -> None:
    """Run the command line and exit with its exit code.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 bug in orch, 75 preempted, 130 interrupted,
    141 output closed.
    """
    prepare()
    try:
        make_app("".join(sys.argv[1:2]))(sys.argv[1:] or ["--help"])
    except OrchError as error:
        print_text(f"error: {error.message}", err=True)
        if error.hint:
            print_text(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_text("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENAMETOOLONG):
            closed_output.end(1, f"error: {error.filename or 'The output'} cannot be used: {error.strerror}.")
        with tempfile.NamedTemporaryFile("w", prefix="orch-bug-", suffix=".log", delete=False) as log:
            log.write(f"{sys.argv}\n{traceback.format_exc()}")
        print_text(f"error: This is a bug in orch. Details: {log.name}", err=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
