"""Watch the Python processes that a rank starts: each imports this module first, through PYTHONPATH.

Processes that do not import torch are left alone. Another module of this name is imported as well.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIB = os.path.dirname(os.path.dirname(FOLDER))


class TorchFinder(MetaPathFinder):
    """An import hook that prepares the process when it begins to import torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == "torch":
            sys.meta_path.remove(self)
            sys.path.append(LIB)
            with contextlib.suppress(Exception):  # another Python of the user may be too old for orch
                importlib.import_module("orch_node.rank.child_processes").watch()
        return None


def import_next() -> None:
    """Import the module that this one hides."""
    module = sys.modules.pop(__name__, None)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != FOLDER]
    with contextlib.suppress(ImportError):
        importlib.import_module(__name__)
    if module is not None:
        sys.modules[__name__] = module


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, TorchFinder())
    import_next()
