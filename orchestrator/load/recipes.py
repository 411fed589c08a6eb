"""Loads recipes and the user's own scripts, and parses --set."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import RECIPES, entry_points
from orchestrator.load.files import read_toml
from orchestrator.load.foreign_files import check_script_file
from orchestrator.load.recipe_file import RecipeFile, SettingFile
from orchestrator.model.recipe import Recipe, Setting, Value

ENTRY_POINTS = "orch.recipes"
NOT_SENT = "__pycache__"


def recipe_folders(plugins: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the folder of each recipe; a recipe is named after its folder, with dashes.

    Args:
        plugins: folders of a recipe or of several, from --recipe-path.

    Raises:
        RequestError: if two recipes have the same name.
    """
    folders: dict[str, Path] = {}
    included = [with_name(path.parent) for path in sorted(RECIPES.glob("*/recipe.toml"))]
    from_options = [recipe for path in plugins for recipe in recipes_below(path)]
    for name, folder in (*included, *installed_recipes(), *from_options):
        if folders.setdefault(name, folder) != folder:
            raise RequestError(
                f"Two recipes are named '{name}': {folders[name]} and {folder}.", hint="Rename the folder of one."
            )
    return folders


def installed_recipes() -> list[tuple[str, Path]]:
    """Return the recipes of installed packages, whose entry points name the package of the recipe's folder.

    Raises:
        RequestError: if an entry point does not name the package of a recipe.
    """
    recipes = []
    for point in sorted(entry_points().select(group=ENTRY_POINTS)):
        try:
            spec = importlib.util.find_spec(point.module)
        except Exception:  # of the package that contains it
            spec = None
        folders = list(spec.submodule_search_locations or []) if spec else []
        if not folders or not (Path(folders[0]) / "recipe.toml").is_file():
            raise RequestError(
                f"The entry point {ENTRY_POINTS}: {point.name} does not name a package with a recipe.toml: "
                f"{point.value}.",
                hint="Fix or uninstall it; see docs/how-to/own-recipes.md.",
            )
        recipes.append((point.name, Path(folders[0])))
    return recipes


def recipes_below(path: Path) -> list[tuple[str, Path]]:
    """Return the recipe in a folder, or those in its subfolders.

    Raises:
        RequestError: if there is none.
    """
    path = path.resolve()
    if (path / "recipe.toml").is_file():
        return [with_name(path)]
    recipes = [with_name(file.parent) for file in sorted(path.glob("*/recipe.toml"))]
    if not recipes:
        raise RequestError(
            f"--recipe-path {path}: no recipe.toml in this folder or its subfolders.",
            hint="`orch recipes new NAME` creates a recipe.",
        )
    return recipes


def with_name(folder: Path) -> tuple[str, Path]:
    return folder.name.replace("_", "-"), folder


def recipe(name: str, plugins: Sequence[Path] = (), *, module: bool = False) -> Recipe:
    """Return a recipe by name, or the user's own script by path or by the name of a module.

    Raises:
        RequestError: if there is no such recipe or script.
    """
    if module:
        return module_recipe(name)
    folders = recipe_folders(plugins)
    if name in folders:
        return recipe_from(name, folders[name])
    script = Path(name)
    if (script / "recipe.toml").is_file():
        return recipe_from(*with_name(script.resolve()))
    if script.is_file():
        check_script_file(script)
        return Recipe(name=script.stem, script=str(script.resolve()), own_script=True)
    if script.is_dir() and "/" in name:
        raise RequestError(
            f"{name} is a folder without recipe.toml.",
            hint="Name a script in it, or create a recipe with `orch recipes new NAME`.",
        )
    if script.suffix == ".py" or "/" in name:
        near = difflib.get_close_matches(name, map(str, script.parent.glob("*.py")), n=1)
        raise RequestError(
            f"There is no script {name!r}.",
            hint=f"Did you mean {near[0]}?" if near else "Give the path of a script; `orch recipes` lists the recipes.",
        )
    raise RequestError(f"There is no recipe '{name}'.", hint=did_you_mean(name, folders))


def module_recipe(name: str) -> Recipe:
    """Return a module as the user's own script; the ranks' Python checks that it exists.

    Raises:
        RequestError: if the name is that of a file.
    """
    hint = "Omit -m to run a script by its path." if "/" in name else ""
    if name.endswith(".py") and not hint:
        hint = f"Omit .py: -m {name.removesuffix('.py')}. Without -m, the name is a script's path."
    if hint:
        raise RequestError(f"-m {name}: not the name of a module.", hint=hint)
    return Recipe(name=name.rpartition(".")[2], script=name, own_script=True, module=True)


def recipe_from(name: str, folder: Path) -> Recipe:
    """Return the recipe in a folder.

    Raises:
        RequestError: if its files are invalid, or do not match.
    """
    file = read_toml(folder / "recipe.toml", RecipeFile)
    if not (folder / file.script).is_file():
        raise RequestError(
            f"{folder}/recipe.toml: script: there is no file '{file.script}'.", hint="Name a file in the same folder."
        )
    is_included = folder.parent == RECIPES
    declared = {
        key: Setting(value.type, value.default)
        for key, value in file.settings.items()
        if isinstance(value, SettingFile)
    }
    return Recipe(
        name=name,
        summary=file.summary,
        script=str(folder / file.script),
        resumes=file.resumes,
        elastic=file.elastic,
        ipex=file.ipex,
        declared=declared,
        defaults=with_paths(folder, file, file.settings),
        paths=tuple(file.paths),
        excludes={key: tuple(value) for key, value in file.excludes.items()},
        presets={name: with_paths(folder, file, values) for name, values in file.presets.items()},
        precisions={key: tuple(value) for key, value in file.precisions.items()},
        stacks=tuple(file.stacks),
        environment=file.environment,
        folder=str(folder),
        files=() if is_included else files_of(folder),
    )


def with_paths(folder: Path, file: RecipeFile, values: Mapping[str, Value | SettingFile]) -> dict[str, Value]:
    """Return the values of a recipe's file, with the paths of files in the recipe's folder made absolute."""
    plain = {key: value.default if isinstance(value, SettingFile) else value for key, value in values.items()}
    return {
        key: str((folder / str(value)).resolve()) if key in file.paths else value
        for key, value in plain.items()
        if value is not None
    }


def files_of(folder: Path) -> tuple[str, ...]:
    """Return all files of a plug-in recipe except hidden ones and bytecode."""
    return tuple(
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") or part == NOT_SENT for part in path.relative_to(folder).parts)
    )


def settings(options: list[str], recipe: Recipe) -> dict[str, Value]:
    """Parse --set KEY=VALUE options.

    Raises:
        RequestError: if a name or value is wrong, or a file does not exist.
    """
    values: dict[str, Value] = {}
    for option in options:
        name, separator, text = option.partition("=")
        if not separator or not name:
            raise RequestError(f"--set {option}: expected KEY=VALUE.", hint="--set learning_rate=1e-4")
        # Everything except true and false reaches the script as it is written.
        values[name] = {"true": True, "false": False}.get(text.lower(), text)
    recipe.check_names(values)
    recipe.check_types(values)
    for name in values.keys() & set(recipe.paths):
        values[name] = existing_file(name, str(values[name]))
    return values


def existing_file(name: str, text: str) -> str:
    path = Path(text)
    if not path.is_file():
        raise RequestError(f"--set {name}={text}: file not found.", hint="Paths are relative to the current folder.")
    return str(path.resolve())
