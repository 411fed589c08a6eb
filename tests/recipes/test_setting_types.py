"""Check that the types of settings in recipe.toml are those that the script's parser accepts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("transformers")

from orchestrator.load.recipes import recipe_folders, recipe_from
from orchestrator.model.recipe import Recipe
from orchestrator.paths import TRAIN
from tests.support.jobs import SCRIPTS

# The modules of each recipe that have the dataclasses of its command line.
MODULES = {
    "bert-data": ("data_config",),
    "bert-pretrain": ("pretrain_config",),
    "bert-qa": ("config",),
    "bert-qa-quant": ("config", "quant_config"),
    "glue-mrpc": ("mrpc_config",),
}
RECIPES = [recipe_from(name, folder) for name, folder in recipe_folders().items()]


@pytest.fixture(scope="module")
def script_types() -> dict[str, dict[str, str]]:
    """Return the types of the arguments of each recipe's script."""
    command = [sys.executable, str(SCRIPTS / "setting_types.py"), str(TRAIN), json.dumps(MODULES)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return dict(json.loads(process.stdout))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_types_are_those_of_the_script(recipe: Recipe, script_types: dict[str, dict[str, str]]) -> None:
    names = [*recipe.arguments, *recipe.accepts]
    types = {name: recipe.type_of(name) for name in names}
    assert types == {name: script_types[recipe.name][name] for name in names}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_defaults_and_presets_have_valid_types(recipe: Recipe) -> None:
    for values in (recipe.arguments, *recipe.presets.values()):
        recipe.check_names(values)
        recipe.check_types(values)
