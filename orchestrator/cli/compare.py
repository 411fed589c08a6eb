"""The command `orch runs compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, print_error
from orchestrator.operations import report as operation
from orchestrator.report import comparison, ranking
from orchestrator.screen import print_text


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="ID|last", help="First run, or an array; `orch runs` lists them.")],
    b: Annotated[str, typer.Argument(metavar="ID|last", help="Second run.")] = "last",
    result: Annotated[
        str | None, typer.Option("--by", metavar="RESULT", help="Rank the runs of an array by this result.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the settings and the results of two runs, or rank the runs of an array."""
    if ranked := operation.ranking(context.obj, a, result):
        print_text(ranking.as_json(ranked) if as_json else ranking.as_text(ranked, result))
        return
    compared = operation.comparison(context.obj, a, b, print_error)
    print_text(comparison.as_json(compared) if as_json else comparison.text(compared))
