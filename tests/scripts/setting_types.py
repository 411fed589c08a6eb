"""TRAIN {RECIPE: [MODULE, ...]} as JSON -> {RECIPE: {SETTING: its type}} of their dataclasses.

One process for all recipes: transformers takes seconds to import.
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
    options = [one for one in typing.get_args(hint) or (hint,) if one is not type(None)]
    return KINDS.get(options[0], "text") if len(options) == 1 else "text"


def told(module: ModuleType) -> Iterator[tuple[str, str]]:
    for value in vars(module).values():
        if dataclasses.is_dataclass(value) and getattr(value, "__name__", "").endswith(COMMAND_LINES):
            for name, hint in typing.get_type_hints(value).items():
                yield name, kind(hint)


def of_recipe(name: str, modules: list[str]) -> dict[str, str]:
    """Recipes have modules of the same names: afterwards they are forgotten."""
    before = set(sys.modules)
    folders = [str(TRAIN / "recipes" / one) for one in (name.replace("-", "_"), "bert_qa")]
    sys.path[:0] = folders
    found = {key: value for one in modules for key, value in told(importlib.import_module(one))}
    del sys.path[: len(folders)]
    for one in set(sys.modules) - before:
        if str(getattr(sys.modules[one], "__file__", "")).startswith(str(TRAIN / "recipes")):
            del sys.modules[one]
    return found


sys.path.insert(0, str(TRAIN / "lib"))
print(json.dumps({name: of_recipe(name, one) for name, one in json.loads(sys.argv[2]).items()}))
