"""recipe.toml, or a script of the user's own -> Recipe; --set -> values."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_toml
from orchestrator.recipe import Recipe, Value
from orchestrator.share import TRAIN


class RecipeFile(StrictModel):
    """recipe.toml; the fields mean what orchestrator.recipe.Recipe says."""

    summary: str
    script: str
    resumes: bool = False
    elastic: bool = False
    stacks: list[str] = Field(default_factory=list)
    paths: list[str] = Field(default_factory=list)
    accepts: list[str] = Field(default_factory=list)
    excludes: dict[str, list[str]] = Field(default_factory=dict)
    precisions: dict[str, list[str]]
    arguments: dict[str, Value]
    presets: dict[str, dict[str, Value]] = Field(default_factory=dict)


def recipe_folders() -> dict[str, Path]:
    """Recipe name -> its folder in train/; a recipe is named as its folder, with dashes."""
    found = TRAIN.glob("*/recipe.toml")
    return {path.parent.name.replace("_", "-"): path.parent for path in sorted(found)}


def recipe(name: str) -> Recipe:
    """A recipe by name, or the user's own script by path. Raises RequestError."""
    folders = recipe_folders()
    if name in folders:
        return recipe_from(name, folders[name])
    script = Path(name)
    if script.is_file():
        return Recipe(name=script.stem, script=str(script.resolve()), own_script=True)
    if script.suffix == ".py" or "/" in name:
        raise RequestError(f"There is no script {name!r}.")
    raise RequestError(f"There is no recipe '{name}'.", hint=did_you_mean(name, folders))


def recipe_from(name: str, folder: Path) -> Recipe:
    file = read_toml(folder / "recipe.toml", RecipeFile)
    return Recipe(
        name=name,
        summary=file.summary,
        script=str(folder / file.script),
        resumes=file.resumes,
        elastic=file.elastic,
        arguments={
            key: resolve(value, key in file.paths, folder) for key, value in file.arguments.items()
        },
        accepts=tuple(file.accepts),
        paths=tuple(file.paths),
        excludes={key: tuple(value) for key, value in file.excludes.items()},
        presets=file.presets,
        precisions={key: tuple(value) for key, value in file.precisions.items()},
        stacks=tuple(file.stacks),
    )


def resolve(value: Value, is_path: bool, base: Path) -> Value:
    """A path argument as an absolute path; everything else as it is."""
    return str((base / str(value)).resolve()) if is_path else value


def settings(pairs: list[str], recipe: Recipe) -> dict[str, Value]:
    """--set KEY=VALUE ... -> values; files must exist. Raises RequestError."""
    chosen: dict[str, Value] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise RequestError(f"--set {pair}: expected KEY=VALUE.")
        chosen[name] = parse_value(text)
    recipe.check_names(chosen)
    for name in chosen.keys() & set(recipe.paths):
        chosen[name] = existing_file(name, str(chosen[name]))
    return chosen


def parse_value(text: str) -> Value:
    """true and false are switches; everything else reaches the script as it is written."""
    return {"true": True, "false": False}.get(text.lower(), text)


def existing_file(name: str, text: str) -> str:
    path = Path(text)
    if not path.is_file():
        raise RequestError(f"--set {name}={text}: there is no such file.")
    return str(path.resolve())
