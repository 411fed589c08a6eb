"""The settings of orch's recipes, with the installed version of transformers, and the order of their imports."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from orchestrator.load.definitions import recipe_folders, recipe_from
from orchestrator.load.scripts import with_parser
from orchestrator.model.recipe import as_arguments


@pytest.mark.parametrize(("name", "folder"), recipe_folders().items(), ids=recipe_folders())
def test_defaults_and_presets_are_those_that_the_parser_knows(name: str, folder: object) -> None:
    recipe = with_parser(recipe_from(name, recipe_folders()[name]))  # which checks all of them
    assert recipe.has_parser
    assert "output_dir" in recipe.declared


def test_switches_that_may_be_none_are_passed_with_their_value() -> None:
    recipe = with_parser(recipe_from("bert-qa", recipe_folders()["bert-qa"]))
    arguments = as_arguments(recipe.settings(None, {"greater_is_better": True, "do_predict": True}))
    assert {"--greater_is_better=true", "--do_predict"} <= {*arguments}
    assert {*recipe.declared} > {"overwrite_output_dir", "warmup_ratio", "learning_rate"}


RECIPES = Path(__file__).parents[2] / "train" / "recipes"


@pytest.mark.parametrize(
    "script",
    sorted(path for path in RECIPES.glob("*/run_*.py") if "\nfrom transformers " in path.read_text()),
    ids=lambda path: path.stem,
)
def test_each_recipe_speeds_up_imports_first(script: Path) -> None:
    text = script.read_text()
    assert text.index("\nspeed_up_imports()\n") < text.index("\nfrom transformers ")
