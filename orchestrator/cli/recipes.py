"""`orch recipes`."""

from __future__ import annotations

import typer

from orchestrator.cli.options import AsJson


def recipes(as_json: AsJson = False) -> None:
    """List the recipes that can be trained."""
    from orchestrator import load
    from orchestrator.report import listing

    found = [load.recipe(name) for name in load.recipe_folders()]
    rows = [
        {"name": r.name, "summary": r.summary, "presets": sorted(r.presets), "script": r.script}
        for r in found
    ]
    typer.echo(
        listing.as_json("recipes", rows)
        if as_json
        else listing.table(rows, ("name", "summary", "presets"))
    )
