"""The modules that run on nodes, as Python sees them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def load_module(name: str) -> ModuleType:
    return load_file(f"library/{name}.py")


def load_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, PLAYBOOKS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
