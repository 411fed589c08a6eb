"""The command `orch setup`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.options import UserPackages
from orchestrator.cli.stacks import complete_names
from orchestrator.operations.setup import set_up
from orchestrator.screen import print_text


def setup(
    stack: Annotated[
        str,
        typer.Option(metavar="NAME", help="Stack to install; `orch stacks` lists them.", autocompletion=complete_names),
    ] = "current",
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with the wheel of the ccl bindings, as in a release. Default: build the "
            "wheel, which needs a compiler.",
        ),
    ] = None,
    requirements: UserPackages = None,
) -> None:
    """Install a stack into orch's environment, for training on this machine.

    Installs PyTorch for CPU, the ccl backend, MPI and the packages of the recipes, then checks
    them. Packages that are already installed are kept.
    """
    began = time.monotonic()

    def notify(line: str) -> None:
        print_text(f"[{time.monotonic() - began:6.1f}s] {line}", err=True)

    shared = load.shared_requirements(requirements)
    set_up(load.stack(stack), Path(sys.prefix), wheels, requirements=shared, notify=notify)
