"""`orch recipes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, RecipePath, check_subcommand
from orchestrator.screen import say

app = App(help="The recipes: list them, make your own.", invoke_without_command=True)


@app.callback()
def recipes(context: typer.Context, recipe_path: RecipePath = None, as_json: AsJson = False) -> None:
    """List the recipes that can be trained."""
    from orchestrator import load
    from orchestrator.report import listing

    if context.invoked_subcommand:
        check_subcommand(context)
        return
    plugins = tuple(recipe_path or ())
    found = [load.recipe(name, plugins) for name in load.recipe_folders(plugins)]
    rows = [{"name": r.name, "summary": r.summary, "presets": sorted(r.presets), "script": r.script} for r in found]
    say(listing.as_json("recipes", rows) if as_json else listing.table(rows, ("name", "summary", "presets")))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, dashes; its folder's name.")],
    into: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="Where the folder is made.")] = Path("."),
) -> None:
    """Make a recipe: a folder with recipe.toml, its schema, and a script that trains."""
    from orchestrator.operations import recipes as operation

    folder = operation.new(name, into)
    say(f"made {folder}")
    say(f"try it: orch train {name} --recipe-path {folder} --ppn 2")


@app.command()
def schema() -> None:
    """Print the JSON schema of recipe.toml."""
    from orchestrator.load.recipe_file import schema_text

    say(schema_text(), nl=False)
