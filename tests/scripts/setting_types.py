"""Print the types of recipes' settings, from the dataclasses of their command lines: setting_types.py TRAIN MODULES.

MODULES is JSON: the names of modules by recipe. The output is JSON: types by setting by recipe. One process handles
all recipes, because it takes seconds to import transformers.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

TRAIN = Path(sys.argv[1])
KINDS = {bool: "switch", int: "integer", float: "number"}
COMMAND_LINES = ("Arguments", "Options", "Extras")


def kind(hint: object) -> str:
    """Return the name of a type, as in the settings of recipe.toml."""
    options = [option for option in typing.get_args(hint) or (hint,) if option is not type(None)]
    return KINDS.get(options[0], "text") if len(options) == 1 else "text"


def settings_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the names and types of the settings in a module's dataclasses."""
    for value in vars(module).values():
        if dataclasses.is_dataclass(value) and getattr(value, "__name__", "").endswith(COMMAND_LINES):
            for name, hint in typing.get_type_hints(value).items():
                yield name, kind(hint)


def settings_of_recipe(recipe: str, modules: list[str]) -> dict[str, str]:
    """Return the types of a recipe's settings by their names.

    Afterwards the recipe's modules are no longer imported, because several recipes have modules of the same name.
    """
    imported = set(sys.modules)
    folders = [str(TRAIN / "recipes" / folder) for folder in (recipe.replace("-", "_"), "bert_qa")]
    sys.path[:0] = folders
    types = {name: type_name for module in modules for name, type_name in settings_of(importlib.import_module(module))}
    del sys.path[: len(folders)]
    for module in set(sys.modules) - imported:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(TRAIN / "recipes")):
            del sys.modules[module]
    return types


sys.path.insert(0, str(TRAIN / "lib"))
modules_by_recipe = json.loads(sys.argv[2])
print(json.dumps({recipe: settings_of_recipe(recipe, modules) for recipe, modules in modules_by_recipe.items()}))
