"""The command `orch recipes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, RecipePath, has_subcommand
from orchestrator.load.definitions import RECIPE_SCHEMA
from orchestrator.load.scripts import with_parser
from orchestrator.model.recipe import SECRETS
from orchestrator.operations.init import new_recipe
from orchestrator.report import listing
from orchestrator.report.listing import json_text
from orchestrator.screen import print_text

app = App(help="List the recipes and their settings, or create one.", invoke_without_command=True)


@app.callback()
def recipes(context: typer.Context, recipe_path: RecipePath = None, as_json: AsJson = False) -> None:
    """List the recipes."""
    if has_subcommand(context):
        return
    plugins = tuple(recipe_path or ())
    recipes = [load.recipe(name, plugins) for name in load.recipe_folders(plugins)]
    rows = [{"name": r.name, "summary": r.summary, "presets": sorted(r.presets), "script": r.script} for r in recipes]
    print_text(json_text("recipes", recipes=rows) if as_json else listing.table(rows, ("name", "summary", "presets")))


MAX_TYPE_WIDTH = 30  # a longer list of choices follows the description


RecipeName = Annotated[str, typer.Argument(metavar="NAME", help="Name or folder of a recipe.")]


@app.command()
def show(name: RecipeName, recipe_path: RecipePath = None, as_json: AsJson = False) -> None:
    """Show the settings of a recipe, as --set takes them."""
    recipe = with_parser(load.recipe(name, tuple(recipe_path or ())))
    if recipe.unchecked:
        print_text(f"warning: only some settings are listed: {recipe.unchecked}", err=True)
    rows = []
    for name, setting in recipe.declared.items():
        choices = "|".join(setting.choices)
        text, kind = setting.description, choices or setting.type
        if not as_json:
            text = text.partition(". ")[0]
            if len(choices) > MAX_TYPE_WIDTH:
                text, kind = f"{text} ({choices})", "choice"
        if name not in (*recipe.passed_by_orch, *SECRETS):
            rows.append({"name": name, "type": kind, "default": recipe.default(name), "description": text})
    columns = ("name", "type", "default", "description")
    print_text(json_text("settings", settings=rows) if as_json else listing.table(rows, columns))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and dashes; also for the folder.")],
    into: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="Parent of the new folder.")] = Path("."),
) -> None:
    """Create a recipe: a folder with recipe.toml, its schema and a training script."""
    folder = new_recipe(name, into)
    print_text(f"Created {folder}")
    print_text(f"To run it: orch train {name} --recipe-path {folder} --ppn 2")


@app.command()
def schema() -> None:
    """Print the JSON schema of recipe.toml."""
    print_text(RECIPE_SCHEMA.read_text(), nl=False)
