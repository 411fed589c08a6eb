"""Shared code of the recipes. The package itself has their errors, and speeds up the import of transformers."""

from __future__ import annotations

import gc
import sys
from typing import Any

from orch_node.rank.checks import describe as describe  # the texts of the errors

# transformers imports these if they are installed, which costs each rank a second.
UNUSED = ("datasets", "torchao")


class RecipeError(Exception):
    """An error with what is wrong and what to do."""

    code = 1  # of the process


class ArgumentError(RecipeError):
    """A wrong command line."""

    code = 2


def speed_up_imports() -> None:
    """Speed up the following import of transformers.

    Garbage collection stays off until run_script(): imports leave no garbage, and looking for it takes a fifth of their
    time. transformers treats UNUSED as not installed; all others can import these packages normally.
    """
    gc.disable()
    hidden: dict[str, Any] = {name: sys.modules.get(name) for name in UNUSED}
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # makes the modules look missing
    try:
        from transformers.utils import import_utils

        for name in UNUSED:  # before 4.50, it records what is available when it is imported
            if is_available := getattr(import_utils, f"is_{name}_available", None):
                is_available()
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
