"""Recipes: found by name, path or entry point, and checked against their schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from orchestrator import load
from orchestrator.errors import ExecuteError, RequestError
from orchestrator.files import RECIPES, entry_points, tomllib
from orchestrator.load.definitions import RECIPE_SCHEMA, RecipeFile, recipe_from
from orchestrator.load.files import read_toml
from orchestrator.load.scripts import with_parser
from orchestrator.operations.init import new_recipe
from tests.support.disks import small_file_system
from tests.support.files import write_files

RECIPE_FILE = """summary = "s"
script = "x.py"
paths = ["train_file"]

[settings]
train_file = "data/a.json"

[precisions]
fp32 = []
"""


@pytest.fixture
def recipe_folder(tmp_path: Path) -> Path:
    """Return the folder of a recipe."""
    return write_files(tmp_path, {"recipe.toml": RECIPE_FILE, "x.py": ""})


def test_paths_of_a_recipe_are_relative_to_its_folder(recipe_folder: Path) -> None:
    with (recipe_folder / "recipe.toml").open("a") as file:
        file.write('[presets.large]\ntrain_file = "data/large.json"\n')
    recipe = recipe_from("mine", recipe_folder)
    assert recipe.defaults["train_file"] == str(recipe_folder / "data/a.json")
    assert recipe.settings("large", {})["train_file"] == str(recipe_folder / "data/large.json")
    assert recipe.script == str(recipe_folder / "x.py")
    with pytest.raises(RequestError, match="file not found"):
        load.settings(["train_file=nowhere.json"], with_parser(recipe))


def test_error_names_file_line_and_key(recipe_folder: Path) -> None:
    for old, new, message in (
        ("paths", "path", r"recipe.toml, line 3: path: unknown key.*Did you mean 'paths'"),
        ('summary = "s"\n', "", "summary: is missing"),  # missing key
        ('"s"', "3", "line 1: summary: expected a valid string"),  # wrong type
        ("fp32 = []", "fp32 = 1", "line 9: precisions.fp32: expected a valid list"),  # wrong item
        ("fp32 = []", "fp32 = []\n[[[", r"at line 10"),  # no TOML
    ):
        path = recipe_folder / "recipe.toml"
        path.write_text(RECIPE_FILE.replace(old, new))
        with pytest.raises(RequestError) as caught:
            read_toml(path, RecipeFile)
        assert re.search(message, f"{caught.value} {caught.value.hint}"), caught.value


def test_missing_script_is_not_mistaken_for_a_recipe() -> None:
    with pytest.raises(RequestError, match=r"There is no script 'nowhere/x.py'"):
        load.recipe("nowhere/x.py")


# The schema, and recipes of third parties.


def test_schema_file_is_current() -> None:
    schema = json.dumps({**RecipeFile.model_json_schema(), "title": "recipe.toml of orch"}, indent=2)
    current, recorded = (re.sub(r'\s*"description": ".*",', "", text) for text in (schema, RECIPE_SCHEMA.read_text()))
    assert json.loads(RECIPE_SCHEMA.read_text()).pop("$schema") == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    assert current.removeprefix("{") in recorded, schema


def test_recipe_of_orch_conforms_to_the_schema() -> None:
    for path in sorted(RECIPES.glob("*/recipe.toml")):
        jsonschema.Draft202012Validator(json.loads(RECIPE_SCHEMA.read_text())).validate(tomllib.loads(path.read_text()))
        first_line = path.read_text().splitlines()[0]
        assert (path.parent / first_line.removeprefix("#:schema ")).resolve() == RECIPE_SCHEMA.resolve()


def test_new_recipe_is_found_by_its_path(tmp_path: Path) -> None:
    folder = new_recipe("my-own", tmp_path)
    for path in (tmp_path, folder):
        assert load.recipe_folders((path,))["my-own"] == folder
        recipe = load.recipe("my-own", (path,))
        assert recipe.script == str(folder / "train.py")
        assert str(folder / "recipe.toml") in recipe.files
    assert load.recipe(str(folder)).name == "my-own"
    assert (folder / "recipe.schema.json").read_text() == RECIPE_SCHEMA.read_text()


def test_conflicting_or_missing_recipe_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no recipe\.toml"):
        load.recipe_folders((tmp_path,))
    for name in ("My", "a_b", "../x", "", "-x"):
        with pytest.raises(RequestError, match="Invalid recipe name"):
            new_recipe(name, tmp_path)
    folder = new_recipe("mine", tmp_path)
    with pytest.raises(RequestError, match="already exists"):
        new_recipe("mine", tmp_path)
    with small_file_system(tmp_path / "disk", "8k"), pytest.raises(ExecuteError, match="No space left"):
        new_recipe("large", tmp_path / "disk")
    folder.rename(tmp_path / "bert_qa")
    with pytest.raises(RequestError, match="Two recipes are named 'bert-qa'"):
        load.recipe_folders((tmp_path,))


def test_recipe_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(entry_points.cache_clear)
    folder = new_recipe("theirs", tmp_path / "their_package")
    (tmp_path / "their_package" / "__init__.py").touch()
    metadata = tmp_path / "their_package-1.dist-info"
    entry_point = "[orch.recipes]\ntheirs = their_package.theirs\n"
    write_files(metadata, {"METADATA": "Name: their-package\nVersion: 1\n", "entry_points.txt": entry_point})
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points.cache_clear()
    assert load.recipe_folders()["theirs"] == folder
    (metadata / "entry_points.txt").write_text("[orch.recipes]\ntheirs = package_that_is_missing.theirs\n")
    entry_points.cache_clear()
    with pytest.raises(RequestError, match=r"theirs does not name a package with a recipe\.toml: package_that"):
        load.recipe_folders()
