"""What several commands share: options, and what is said beside the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="ID|last")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
RunsDir = Annotated[
    Path, typer.Option(envvar="ORCH_RUNS_DIR", help="Where run directories are kept.")
]
OfInventory = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        help="Ask the nodes of this inventory: finds runs that other machines have started.",
    ),
]
RUNS_DIR = Path("runs")
RecipePath = Annotated[
    list[Path] | None,
    typer.Option(
        envvar="ORCH_RECIPE_PATH",
        help="A folder with a recipe.toml, or of several such folders; may be repeated.",
    ),
]


def complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
