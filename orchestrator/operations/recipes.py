"""Create recipes."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.files import TEMPLATES
from orchestrator.load.recipe_file import schema_text
from orchestrator.load.recipes import recipe_folders

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def new(name: str, into: Path) -> Path:
    """Create the folder of a recipe from the templates and return it.

    Raises:
        RequestError: if the name is invalid or already in use.
    """
    if not NAME.fullmatch(name):
        raise RequestError(
            f"Invalid recipe name '{name}'.", hint="Use lower-case letters, digits and dashes: my-recipe."
        )
    if name in recipe_folders():
        raise RequestError(f"Recipe '{name}' already exists.", hint="Choose another name: my-recipe.")
    folder = into / name.replace("-", "_")
    if folder.exists():
        raise RequestError(f"{folder} already exists.", hint="Choose another name or --in.")
    folder.mkdir(parents=True)
    for template in sorted((TEMPLATES / "recipe").iterdir()):
        text = template.read_text(encoding="utf-8").replace("NAME", name)
        (folder / template.name.removesuffix(".in")).write_text(text, encoding="utf-8")
    (folder / "recipe.schema.json").write_text(schema_text(), encoding="utf-8")
    return folder
