"""Prepares a recipe's script before it imports its libraries, so that a rank starts sooner."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

# transformers imports these if they are installed, which costs each rank a second.
UNUSED = ("datasets", "torchao")


def speed_up_imports() -> None:
    """Speed up the following import of transformers.

    Garbage collection stays off until run_script(): imports leave no garbage, and looking for it takes a fifth of their
    time. transformers treats UNUSED as not installed; all others can import these packages normally.
    """
    gc.disable()
    hidden: dict[str, ModuleType | None] = {}
    for name in UNUSED:
        hidden[name] = sys.modules.get(name)
        sys.modules[name] = None  # type: ignore[assignment]  # makes the module look missing
    try:
        check_availability()
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def check_availability() -> None:
    """Make transformers record which packages are available; before 4.50 it does so when imported."""
    from transformers.utils import import_utils

    for name in UNUSED:
        if is_available := getattr(import_utils, f"is_{name}_available", None):
            is_available()
