"""recipe.toml, or a script of the user's own -> Recipe; --set -> values."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import read_toml
from orchestrator.load.recipe_file import RecipeFile
from orchestrator.model.recipe import Recipe, Value
from orchestrator.paths import RECIPES

ENTRY_POINTS = "orch.recipes"
NOT_SENT = ("__pycache__",)


def recipe_folders(plugins: Sequence[Path] = ()) -> dict[str, Path]:
    """Recipe name -> its folder; a recipe is named as its folder, with dashes.

    `plugins`: folders of a recipe or of several, from --recipe-path. Raises RequestError.
    """
    found: dict[str, Path] = {}
    for name, folder in (*ours(), *installed(), *(one for path in plugins for one in at(path))):
        if found.setdefault(name, folder) != folder:
            raise RequestError(
                f"There are two recipes '{name}': {found[name]} and {folder}.", hint="Rename the folder of one of them."
            )
    return found


def ours() -> list[tuple[str, Path]]:
    return [named(path.parent) for path in sorted(RECIPES.glob("*/recipe.toml"))]


def installed() -> list[tuple[str, Path]]:
    """Recipes of installed packages: entry points that name the package of the recipe's folder."""
    found = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS)):
        spec = importlib.util.find_spec(point.module)
        folders = list(spec.submodule_search_locations or []) if spec else []
        if not folders:
            raise RequestError(
                f"The entry point {ENTRY_POINTS}: {point.name} names no package: {point.value}.",
                hint="Repair or uninstall it; docs/how-to/own-recipes.md says what it has to be.",
            )
        found.append((point.name, Path(folders[0])))
    return found


def at(path: Path) -> list[tuple[str, Path]]:
    """A folder with a recipe.toml, or one whose folders have them."""
    path = path.resolve()
    if (path / "recipe.toml").is_file():
        return [named(path)]
    found = [named(file.parent) for file in sorted(path.glob("*/recipe.toml"))]
    if not found:
        raise RequestError(
            f"--recipe-path {path}: there is no recipe.toml, nor in its folders.",
            hint="`orch recipes new NAME` makes a recipe.",
        )
    return found


def named(folder: Path) -> tuple[str, Path]:
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
        return recipe_from(*named(script.resolve()))
    if script.is_file():
        return Recipe(name=script.stem, script=str(script.resolve()), own_script=True)
    if script.is_dir() and "/" in name:
        raise RequestError(
            f"{name} is a folder without recipe.toml.",
            hint="Name a script in it, or give it a recipe.toml: `orch recipes new NAME` writes a recipe.",
        )
    if script.suffix == ".py" or "/" in name:
        near = difflib.get_close_matches(name, map(str, script.parent.glob("*.py")), n=1)
        raise RequestError(
            f"There is no script {name!r}.",
            hint=f"Did you mean {near[0]}?"
            if near
            else "A script is named by its path; `orch recipes` lists the recipes.",
        )
    raise RequestError(f"There is no recipe '{name}'.", hint=did_you_mean(name, folders))


def module_recipe(name: str) -> Recipe:
    """Return a module as the user's own script; whether it exists is for the ranks' Python to say.

    Raises:
        RequestError: if it is named like a file.
    """
    hint = "Leave -m out: a script is named by its path." if "/" in name else ""
    if name.endswith(".py") and not hint:
        hint = f"Leave out .py: -m {name.removesuffix('.py')}. Without -m it is a script's path."
    if hint:
        raise RequestError(f"-m {name}: that is not the name of a module.", hint=hint)
    return Recipe(name=name.rpartition(".")[2], script=name, own_script=True, module=True)


def recipe_from(name: str, folder: Path) -> Recipe:
    file = read_toml(folder / "recipe.toml", RecipeFile)
    return Recipe(
        name=name,
        summary=file.summary,
        script=str(folder / file.script),
        resumes=file.resumes,
        elastic=file.elastic,
        ipex=file.ipex,
        arguments={key: resolve(value, key in file.paths, folder) for key, value in file.arguments.items()},
        accepts=tuple(file.accepts),
        types=file.types.of_names(),
        paths=tuple(file.paths),
        excludes={key: tuple(value) for key, value in file.excludes.items()},
        presets=file.presets,
        precisions={key: tuple(value) for key, value in file.precisions.items()},
        stacks=tuple(file.stacks),
        environment=file.environment,
        folder=str(folder),
        files=() if folder.parent == RECIPES else files_of(folder),
    )


def files_of(folder: Path) -> tuple[str, ...]:
    """All files of a plug-in recipe, but not what is hidden or made by Python."""
    return tuple(
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") or p in NOT_SENT for p in path.relative_to(folder).parts)
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
            raise RequestError(f"--set {pair}: expected KEY=VALUE.", hint="--set learning_rate=1e-4")
        chosen[name] = parse_value(text)
    recipe.check_names(chosen)
    recipe.check_types(chosen)
    for name in chosen.keys() & set(recipe.paths):
        chosen[name] = existing_file(name, str(chosen[name]))
    return chosen


def parse_value(text: str) -> Value:
    """true and false are switches; everything else reaches the script as it is written."""
    return {"true": True, "false": False}.get(text.lower(), text)


def existing_file(name: str, text: str) -> str:
    path = Path(text)
    if not path.is_file():
        raise RequestError(
            f"--set {name}={text}: there is no such file.",
            hint="A path is relative to the folder that orch is called in.",
        )
    return str(path.resolve())
