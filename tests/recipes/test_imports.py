"""Check that a rank of a recipe imports no library that the recipe does not use."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "train" / "recipes"
UNUSED = [name for name in ("datasets", "torchao") if find_spec(name)]
PRINT_IMPORTS = """
import importlib, runpy, sys
script, *unused = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
runpy.run_path(script, run_name="inspected")
from transformers import BertForQuestionAnswering, Trainer
print("imported", sorted(set(unused) & set(sys.modules)))
for name in unused:
    print("can be imported", importlib.import_module(name).__name__)
"""


@pytest.mark.skipif(not UNUSED, reason="neither datasets nor torchao is installed")
def test_unused_libraries_are_not_imported() -> None:
    script = RECIPES / "bert_qa" / "run_qa.py"
    command = [sys.executable, "-c", PRINT_IMPORTS, str(script), *UNUSED]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expected = ["imported []", *(f"can be imported {name}" for name in UNUSED)]
    assert process.stdout.splitlines() == expected, process.stderr


@pytest.mark.parametrize(
    "script",
    sorted(path for path in RECIPES.glob("*/run_*.py") if "\nfrom transformers " in path.read_text()),
    ids=lambda path: path.stem,
)
def test_each_recipe_speeds_up_imports_first(script: Path) -> None:
    text = script.read_text()
    assert text.index("\nspeed_up_imports()\n") < text.index("\nfrom transformers ")
