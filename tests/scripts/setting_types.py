"""Print the fields of dataclasses as JSON: setting_types.py TRAIN FOLDER CLASS..., with classes as in recipe.toml.

The output has the type and the default of each field by name.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import typing
from pathlib import Path

KINDS = {bool: "switch", int: "integer", float: "number"}


def kind(hint: object) -> str:
    """Return the name of a type, as in recipe.toml."""
    options = [option for option in typing.get_args(hint) or (hint,) if option is not type(None)]
    return KINDS.get(options[0], "text") if len(options) == 1 else "text"


recipes, folder, *classes = sys.argv[1:]
sys.path[:0] = [folder, *(str(path) for path in Path(recipes).iterdir()), str(Path(recipes).parent / "lib")]
fields: dict[str, tuple[str, object]] = {}
for name in classes:
    module, _, class_name = name.rpartition(":")
    value = getattr(importlib.import_module(module), class_name)
    hints = typing.get_type_hints(value)
    for field in dataclasses.fields(value):
        if field.init:
            default = None if field.default is dataclasses.MISSING else field.default
            fields[field.name] = (kind(hints[field.name]), default)
print(json.dumps(fields))
