"""Check that the settings of orch's recipes are those of the script's parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from orchestrator.load.dataclass_settings import dataclass_settings
from orchestrator.load.files import read_toml
from orchestrator.load.recipe_file import RecipeFile
from orchestrator.load.recipes import recipe_folders, recipe_from
from orchestrator.model.recipe import Recipe, as_arguments
from tests.support.jobs import RECIPES as FOLDER
from tests.support.jobs import SCRIPTS

RECIPES = [recipe_from(name, folder) for name, folder in recipe_folders().items()]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_settings_are_those_of_the_script(recipe: Recipe) -> None:
    """Compare types and defaults with those of the dataclasses; other versions of transformers have further fields."""
    classes = read_toml(FOLDER / recipe.folder / "recipe.toml", RecipeFile).dataclasses
    command = [sys.executable, str(SCRIPTS / "setting_types.py"), str(FOLDER), recipe.folder, *classes]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    fields = json.loads(process.stdout)
    assert {name: recipe.declared[name].type for name in fields} == {name: kind for name, (kind, _) in fields.items()}
    defaults = {name: setting.default for name, setting in recipe.declared.items() if setting.default is not None}
    assert defaults == {name: fields[name][1] for name in defaults}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_defaults_and_presets_are_valid_settings(recipe: Recipe) -> None:
    for values in (recipe.defaults, *recipe.presets.values()):
        recipe.check_names(values)
        recipe.check_types(values)


def test_parser_of_transformers_accepts_all_switches_as_they_are_passed(tmp_path: Path) -> None:
    import transformers

    (tmp_path / "train.py").write_text("class Settings(transformers.TrainingArguments): pass\n")
    declared = dataclass_settings(tmp_path / "train.py", ["Settings"], [])
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    destinations = {action.dest for action in parser._actions} - {"bf16"}
    names = [name for name, setting in declared.items() if setting.type == "switch" and name in destinations]
    settings = Recipe(name="", script="", declared=declared).settings(None, dict.fromkeys(names, True))
    values = vars(parser.parse_args(as_arguments(settings)))
    assert len(names) > 30
    assert {name: values[name] for name in names} == dict.fromkeys(names, True)
