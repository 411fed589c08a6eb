"""The command `orch runs compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, print_error
from orchestrator.screen import print_text


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="ID|last", help="First run; `orch runs` lists them.")],
    b: Annotated[str, typer.Argument(metavar="ID|last", help="Second run.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Compare the settings and the results of two runs: loss, throughput and outcome."""
    from orchestrator.operations import report as operation
    from orchestrator.report import comparison

    result = operation.comparison(context.obj, a, b, print_error)
    print_text(comparison.as_json(result) if as_json else comparison.text(result))
