"""Check that recipes speed up the imports of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "train" / "recipes"


@pytest.mark.parametrize(
    "script",
    sorted(path for path in RECIPES.glob("*/run_*.py") if "\nfrom transformers " in path.read_text()),
    ids=lambda path: path.stem,
)
def test_each_recipe_speeds_up_imports_first(script: Path) -> None:
    text = script.read_text()
    assert text.index("\nspeed_up_imports()\n") < text.index("\nfrom transformers ")
