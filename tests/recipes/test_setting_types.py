"""What recipe.toml says of the types of its settings is what the script's own parser takes."""

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

# Recipe -> its modules with the dataclasses of its command line.
MODULES = {
    "bert-data": ("data_config",),
    "bert-pretrain": ("pretrain_config",),
    "bert-qa": ("config",),
    "bert-qa-quant": ("config", "quant_config"),
    "glue-mrpc": ("mrpc_config",),
}
RECIPES = [recipe_from(name, folder) for name, folder in recipe_folders().items()]


@pytest.fixture(scope="module")
def real() -> dict[str, dict[str, str]]:
    command = [sys.executable, str(SCRIPTS / "setting_types.py"), str(TRAIN), json.dumps(MODULES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: one.name)
def test_types_are_those_of_the_script(recipe: Recipe, real: dict[str, dict[str, str]]) -> None:
    names = [*recipe.arguments, *recipe.accepts]
    told = {name: recipe.type_of(name) for name in names}
    assert told == {name: real[recipe.name][name] for name in names}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: one.name)
def test_defaults_and_presets_fit(recipe: Recipe) -> None:
    for values in (recipe.arguments, *recipe.presets.values()):
        recipe.check_names(values)
        recipe.check_types(values)
