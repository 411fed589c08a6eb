"""Load recipes, the user's own scripts and stacks from their files, and parse --set."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal

from orch_node.protocol.environment import find_reserved
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from orchestrator.errors import PlanError, RequestError, did_you_mean
from orchestrator.files import RECIPES, STACKS, entry_points
from orchestrator.load.files import StrictModel, Texts, check_script_file, read_table, read_toml
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Setting, Value
from orchestrator.stacks.stack import BINDINGS, Stack

RECIPE_SCHEMA = Path(__file__).parents[1] / "schemas" / "recipe.schema.json"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class SettingFile(StrictModel):
    """A setting that the script's parser does not list."""

    type: Literal["integer", "number", "switch", "text"]
    default: Value | None = None


class RecipeFile(StrictModel):
    """A training script, its defaults, and how they may be changed. RECIPE_SCHEMA describes the keys."""

    summary: str
    script: str
    resumes: bool = False
    elastic: bool = False
    ipex: bool = False
    stacks: Texts = Field(default_factory=tuple)
    paths: Texts = Field(default_factory=tuple)
    excludes: dict[str, Texts] = Field(default_factory=dict)
    environment: dict[Name, str] = Field(default_factory=dict)
    precisions: dict[Literal["bf16", "fp32"], Texts] = Field(min_length=1)
    settings: dict[Name, Value | SettingFile] = Field(default_factory=dict)
    presets: dict[str, dict[str, Value]] = Field(default_factory=dict)

    @field_validator("environment")
    @classmethod
    def check_environment(cls, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables; raise ValueError if orch sets one of them."""
        if reserved := find_reserved(environment):
            raise ValueError(f"{reserved[0]}: {reserved[1]}")
        return environment


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
    files = sorted(RECIPES.glob("*/recipe.toml"))
    files += [file for path in plugins for file in recipes_below(Path(os.path.realpath(path)))]
    included = [(file.parent.name.replace("_", "-"), file.parent) for file in files]
    for name, folder in (*included, *map(installed_recipe, sorted(entry_points().select(group=ENTRY_POINTS)))):
        if folders.setdefault(name, folder) != folder:
            raise RequestError.about("recipe-names", name=name, first=folders[name], folder=folder)
    return folders


def installed_recipe(point: EntryPoint) -> tuple[str, Path]:
    """Return a recipe of an installed package, whose entry point names the package of the recipe's folder.

    Raises:
        RequestError: if the entry point does not name the package of a recipe.
    """
    try:
        spec = importlib.util.find_spec(point.module)
    except Exception:  # of the package that contains it
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders or not (Path(folders[0]) / "recipe.toml").is_file():
        raise RequestError.about("recipe-entry-point", point=point)
    return point.name, Path(folders[0])


def recipes_below(path: Path) -> list[Path]:
    """Return the recipe.toml in a folder, or those in its subfolders.

    Raises:
        RequestError: if there is none.
    """
    if recipes := sorted(path.glob("recipe.toml")) or sorted(path.glob("*/recipe.toml")):
        return recipes
    raise RequestError.about("recipe-path", path=path)


def recipe(name: str, plugins: Sequence[Path] = (), *, module: bool = False) -> Recipe:
    """Return a recipe by name, or the user's own script by path or by the name of a module.

    Raises:
        RequestError: if there is no such recipe or script; the ranks' Python checks that a module exists.
    """
    if module:
        if "/" in name or name.endswith(".py"):
            correct = f"Omit .py: -m {name.removesuffix('.py')}."
            hint = "Omit -m to run a script by its path." if "/" in name else correct
            raise RequestError(f"-m {name}: not the name of a module.", hint=hint)
        return Recipe(name=name.rpartition(".")[2], script=name, own_script=True, module=True)
    folders = recipe_folders(plugins)
    if name in folders:
        return recipe_from(name, folders[name])
    script = Path(name)
    if (script / "recipe.toml").is_file():
        return recipe_from(script.resolve().name.replace("_", "-"), script.resolve())
    if script.is_file():
        check_script_file(script)
        return Recipe(name=script.stem, script=str(script.resolve()), own_script=True)
    if script.is_dir() and "/" in name:
        raise RequestError.about("folder-as-recipe", name=name)
    if script.suffix == ".py" or "/" in name:
        files = (str(path) for path in script.parent.glob("*.py") if path.is_file())
        near = difflib.get_close_matches(name, files, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Give the path of a script; `orch recipes` lists the recipes."
        raise RequestError(f"There is no script {name!r}.", hint=hint)
    hint = f"{did_you_mean(name, folders)} --recipe-path FOLDER adds recipes."
    raise RequestError(f"There is no recipe '{name}'.", hint=hint)


def recipe_from(name: str, folder: Path) -> Recipe:
    """Return the recipe in a folder.

    Raises:
        RequestError: if its files are invalid, or do not match.
    """
    file = read_toml(folder / "recipe.toml", RecipeFile)
    if not (folder / file.script).is_file():
        raise RequestError.about("missing-script-of-recipe", folder=folder, file=file)
    check_script_file(folder / file.script)
    is_included = folder.parent == RECIPES
    declared = {key: value for key, value in file.settings.items() if isinstance(value, SettingFile)}
    return Recipe(
        **file.model_dump(exclude={"script", "settings", "presets"}),
        name=name,
        script=str(folder / file.script),
        declared={key: Setting(value.type, value.default) for key, value in declared.items()},
        defaults=with_paths(folder, file, file.settings),
        presets={name: with_paths(folder, file, values) for name, values in file.presets.items()},
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


def settings(options: Sequence[str], recipe: Recipe, volume: str = "") -> dict[str, Value]:
    """Parse --set KEY=VALUE options.

    Args:
        options: the options.
        recipe: the recipe.
        volume: a folder that only the ranks see, in which settings may name files; or ''.

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
    recipe.check(values)
    for name in values.keys() & set(recipe.paths):
        path = Path(str(values[name]))
        if volume and path.is_relative_to(volume):
            continue
        if not path.is_file():
            raise RequestError.about("missing-file-of-setting", name=name, path=path)
        values[name] = str(path.resolve())
    return values


BACKENDS = "orch.backends"  # a group of entry points
LISTING = "`orch stacks` lists them; the default is current."


def load_entry_point(entry: EntryPoint) -> Backend:
    """Return the backend of an entry point, which names a dict so that a plug-in need not import orch.

    Raises:
        RequestError: if it is invalid.
    """
    try:
        backend = TypeAdapter(Backend).validate_python(entry.load())
    except (ImportError, AttributeError, ValidationError) as error:
        raise RequestError.about("backend-plug-in", entry=entry, error=error) from None
    return replace(backend, source=f"entry point {entry.name} = {entry.value}")


def stack_names() -> list[str]:
    return sorted(path.stem for path in STACKS.glob("*.toml"))


def all_stacks() -> tuple[Stack, ...]:
    """Return all stacks: `current` first, then from the newest torch to the oldest."""
    return tuple(sorted(map(stack, stack_names()), key=age, reverse=True))


def incompatibilities() -> dict[str, Any]:
    """Return what is known about packages that do not work together."""
    return dict(read_table(STACKS.with_name("incompatible.toml")))


def age(stack: Stack) -> tuple[bool, list[int]]:
    return stack.name == "current", [int(part) for part in stack.torch.split(".")]


def stack(name: str, backend: str | None = None) -> Stack:
    """Load a stack, reduced to a backend if one is given.

    Raises:
        RequestError: if there is no such stack.
        PlanError: if the stack does not have the backend.
    """
    if name not in (names := stack_names()):
        raise RequestError(f"There is no stack '{name}'.", hint=did_you_mean(name, names, listing=LISTING))
    loaded = TypeAdapter(Stack).validate_python({**read_table(STACKS / f"{name}.toml"), "name": name})
    bindings = {BINDINGS: loaded.bindings.version} if loaded.bindings and "ccl" in loaded.backends else {}
    plugins = tuple(replace(plugin, source=f"stack '{name}'") for plugin in loaded.plugins)
    loaded = replace(loaded, requirements={**loaded.requirements, **bindings}, plugins=plugins)
    if backend and backend not in loaded.backends:
        problem = f"--backend {backend}: stack '{name}' has {' and '.join(loaded.backends)}."
        raise PlanError(problem, hint=did_you_mean(backend, loaded.backends))
    return loaded.for_backend(backend) if backend else loaded
