"""`orch runs compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, complain
from orchestrator.screen import say


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="ID|last", help="The one; `orch runs` lists them.")],
    b: Annotated[str, typer.Argument(metavar="ID|last", help="The other.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Show which settings of two runs differ, and what came of it: loss, throughput, outcome."""
    from orchestrator.operations import compare as operation
    from orchestrator.report import comparison

    found = operation.comparison(context.obj, a, b, complain)
    say(comparison.as_json(found) if as_json else comparison.text(found))
