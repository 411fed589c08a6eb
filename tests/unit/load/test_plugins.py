"""Third-party recipes: found by path or entry point and checked against a schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.recipe_file import schema, schema_text
from orchestrator.operations import recipes
from orchestrator.paths import RECIPES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(load.__file__).parents[1] / "schemas" / "recipe.schema.json"


def test_the_shipped_schema_is_current() -> None:
    assert SHIPPED.read_text() == schema_text(), "orch recipes schema > " + str(SHIPPED)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/recipe.toml")), ids=lambda p: p.parent.name)
def test_our_recipes_keep_the_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(schema()).validate(tomllib.loads(path.read_text()))
    first = path.read_text().splitlines()[0]
    assert (path.parent / first.removeprefix("#:schema ")).resolve() == SHIPPED.resolve()


def test_the_schema_knows_what_orch_refuses() -> None:
    with pytest.raises(jsonschema.ValidationError, match="'path' was unexpected"):
        jsonschema.validate({"summary": "s", "script": "x", "precisions": {}, "arguments": {}, "path": []}, schema())


def test_a_new_recipe_is_found_by_its_path(tmp_path: Path) -> None:
    folder = recipes.new("my-own", tmp_path)
    for path in (tmp_path, folder):
        assert load.recipe_folders((path,))["my-own"] == folder
        recipe = load.recipe("my-own", (path,))
        assert recipe.script == str(folder / "train.py")
        assert str(folder / "recipe.toml") in recipe.files
    assert load.recipe(str(folder)).name == "my-own"
    assert json.loads((folder / "recipe.schema.json").read_text()) == schema()


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    recipes.new("mine", tmp_path).rename(tmp_path / "bert_qa")
    with pytest.raises(RequestError, match="Two recipes are named 'bert-qa'"):
        load.recipe_folders((tmp_path,))


@pytest.mark.parametrize("name", ["My", "a_b", "../x", "", "a b", "-x"])
def test_a_recipe_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="Invalid recipe name"):
        recipes.new(name, tmp_path)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    recipes.new("mine", tmp_path)
    with pytest.raises(RequestError, match="already exists"):
        recipes.new("mine", tmp_path)


def test_a_path_without_recipes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no recipe\.toml"):
        load.recipe_folders((tmp_path,))


def test_an_installed_package_brings_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recipes.new("theirs", tmp_path / "their_package")
    (tmp_path / "their_package" / "__init__.py").touch()
    info = tmp_path / "their_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[orch.recipes]\ntheirs = their_package.theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load.recipe_folders()["theirs"] == folder
    (info / "entry_points.txt").write_text("[orch.recipes]\ntheirs = json.decoder\n")
    with pytest.raises(RequestError, match=r"theirs does not name a package: json\.decoder"):
        load.recipe_folders()
