"""The program `orch`: registers all commands and turns errors into messages and exit codes."""

from __future__ import annotations

import sys
import tempfile
from typing import Annotated

import typer

from orchestrator.cli import (
    attach,
    commands,
    compare,
    data,
    fetch,
    image,
    init,
    nodes,
    provision,
    recipes,
    report,
    runs,
    setup,
    stacks,
    sync,
    train,
)
from orchestrator.cli import kubernetes as k8s
from orchestrator.cli.app import App
from orchestrator.errors import OrchError
from orchestrator.screen import prepare, print_text
from orchestrator.state import fallback_home, uses_fallback_home
from orchestrator.targets import registry

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

TARGETS = tuple(registry.entries().values())
app = App(
    no_args_is_help=True,
    epilog="\n\n".join(STEPS),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def orch(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda is_set: print_version() if is_set else None,
            help="Show the versions of orch, the installed stack and Python.",
        ),
    ] = False,
) -> None:
    """Turn Linux hosts into a CPU training cluster and train PyTorch models on it."""


def print_version() -> None:
    from orchestrator.operations.stacks import describe_versions

    print_text("\n".join(describe_versions()))
    raise typer.Exit


app.command("setup", rich_help_panel=START)(setup.setup)
app.command("init", rich_help_panel=START)(init.init)
app.command("provision", rich_help_panel=START)(provision.command(*TARGETS))
app.command("train", rich_help_panel=START, epilog="\n\n".join(EXAMPLES))(train.command(*TARGETS))
app.add_typer(runs.app, name="runs", rich_help_panel=RUNS)
app.command("attach", rich_help_panel=RUNS)(attach.attach)
app.command("logs", rich_help_panel=RUNS)(attach.logs)
app.command("report", rich_help_panel=RUNS)(report.report)
app.command("fetch", rich_help_panel=RUNS)(fetch.fetch)
app.command("stop", rich_help_panel=RUNS)(attach.stop)
app.command("nodes", rich_help_panel=NODES)(nodes.nodes)
app.command("exec", rich_help_panel=NODES)(commands.execute)
app.command("shell", rich_help_panel=NODES)(commands.shell)
app.command("sync", rich_help_panel=NODES)(sync.sync)
app.command("clean", rich_help_panel=NODES)(attach.clean)
app.add_typer(k8s.app, name="k8s", rich_help_panel=NODES)
app.add_typer(image.app, name="image", rich_help_panel=NODES)
app.add_typer(recipes.app, name="recipes", rich_help_panel=DEFINITIONS)
app.add_typer(data.app, name="data", rich_help_panel=DEFINITIONS)
app.add_typer(stacks.app, name="stacks", rich_help_panel=DEFINITIONS)
runs.app.command("compare")(compare.compare)


def main() -> None:
    """Run the command line and exit with its exit code.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 bug in orch, 75 preempted, 130 interrupted,
    141 output closed.
    """
    prepare()
    try:
        if uses_fallback_home():
            print_text(f"note: the home directory is not writable; using {fallback_home()}", err=True)
        app()
    except OrchError as error:
        print_text(f"error: {error.message}", err=True)
        if error.hint:
            print_text(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_text("interrupted", err=True)
        sys.exit(130)
    except Exception:
        print_text(f"error: This is a bug in orch. Details: {save_traceback()}", err=True)
        sys.exit(3)


def save_traceback() -> str:
    """Write the current exception to a log file and return its path."""
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="orch-bug-", suffix=".log", delete=False) as log:
        log.write(f"{sys.argv}\n{traceback.format_exc()}")
    return log.name


if __name__ == "__main__":
    main()
