"""`orch setup`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.stacks import complete_names


def setup(
    stack: Annotated[
        str, typer.Option(metavar="NAME", help="Which of orch's stacks.", autocompletion=complete_names)
    ] = "current",
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Take the wheel of the ccl bindings from here, as a release has it, instead of "
            "building it: no compiler is needed.",
        ),
    ] = None,
) -> None:
    """Install a stack beside orch, for training on this machine; what is there already is kept.

    PyTorch for CPU, the backend ccl, MPI and the recipes' packages, then a check.
    """
    from orchestrator import load
    from orchestrator.operations.setup import set_up

    set_up(load.stack(stack), Path(sys.prefix), wheels)
