"""The program that nodes start, train/node.py."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

NODE_PROGRAM = Path(__file__).parents[3] / "train" / "node.py"


def test_each_subcommand_names_a_module_with_a_main_function() -> None:
    subcommands = runpy.run_path(str(NODE_PROGRAM))["SUBCOMMANDS"]
    assert [name for name, module in subcommands.items() if not callable(importlib.import_module(module).main)] == []
