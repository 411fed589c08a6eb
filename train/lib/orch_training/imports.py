"""What a recipe's script does before it imports the libraries, so that a rank begins sooner."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

# transformers imports these wherever they are installed, for a second of each rank's start.
UNUSED = ("datasets", "torchao")


def quick() -> None:
    """To be called before transformers is imported. The collector is off until run_script: imports
    leave no garbage, and looking for it takes a fifth of them. transformers takes UNUSED for not
    installed; everybody else can import them as ever."""
    gc.disable()
    hidden: dict[str, ModuleType | None] = {}
    for name in UNUSED:
        hidden[name] = sys.modules.get(name)
        sys.modules[name] = None  # type: ignore[assignment]  # to the finders: there is no such module
    try:
        settle()
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def settle() -> None:
    """transformers looks once and keeps what it found; releases before 4.50 look when imported."""
    from transformers.utils import import_utils

    for name in UNUSED:
        if found := getattr(import_utils, f"is_{name}_available", None):
            found()
