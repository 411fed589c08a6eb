from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import RequestError
from orchestrator.model.recipe import Recipe, Value, as_arguments

RECIPE = Recipe(
    name="qa",
    script="/recipes/qa.py",
    arguments={"train_file": "/data/a.json", "epochs": 2, "shuffle": True},
    accepts=("dataset_name", "seed"),
    types={"seed": "integer"},
    excludes={"dataset_name": ("train_file",)},
    presets={"full": {"dataset_name": "squad", "epochs": 3}},
    precisions={"bf16": ("--bf16",), "fp32": ()},
)


def test_later_layers_win() -> None:
    assert RECIPE.settings(None, {"epochs": 5})["epochs"] == 5
    assert RECIPE.settings("full", {})["epochs"] == 3
    assert RECIPE.settings("full", {"epochs": 7})["epochs"] == 7


def test_a_setting_drops_the_defaults_that_it_excludes() -> None:
    assert "train_file" not in RECIPE.settings(None, {"dataset_name": "squad"})
    assert "train_file" not in RECIPE.settings("full", {})
    full_settings = RECIPE.settings("full", {"train_file": "/mine.json"})
    assert full_settings["train_file"] == "/mine.json"


@pytest.mark.parametrize("name", ["epoch", "Epochs", "epocs"])
def test_an_unknown_setting_names_the_nearest(name: str) -> None:
    with pytest.raises(RequestError, match=f"has no setting '{name}'") as caught:
        RECIPE.settings(None, {name: 1})
    assert "Did you mean 'epochs'?" in caught.value.hint


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(RequestError, match="no preset 'ful'") as caught:
        RECIPE.settings("ful", {})
    assert "full" in caught.value.hint


def test_settings_become_arguments() -> None:
    settings = {"a": "-x", "yes": True, "no": False, "n": 3, "lr": 3e-5}
    assert as_arguments(settings) == ("--a=-x", "--yes", "--no=false", "--n=3", "--lr=3e-05")


def test_own_scripts_take_no_settings() -> None:
    script_recipe = Recipe(name="mine", script="/mine.py", own_script=True)
    with pytest.raises(RequestError, match="--set applies to recipes only"):
        script_recipe.settings(None, {"a": 1})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("epochs", "abc", "a number"),
        ("epochs", "", "a number"),
        ("epochs", "nan", "a number"),
        ("epochs", True, "a number"),
        ("seed", "1.5", "a whole number"),
        ("seed", "1e3", "a whole number"),
        ("shuffle", "maybe", "true or false"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name: str, value: Value, wanted: str) -> None:
    with pytest.raises(RequestError, match=f"--set {name}={value}: not {wanted}") as caught:
        RECIPE.check_types({name: value})
    assert f"expects {wanted}" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", "2.5"),
        ("epochs", "1e-3"),
        ("epochs", "-1"),
        ("seed", "7"),
        ("shuffle", "no"),
        ("shuffle", False),
        ("dataset_name", "7"),
        ("train_file", "b.json"),
    ],
)
def test_a_value_of_the_right_type_is_not(name: str, value: Value) -> None:
    RECIPE.check_types({name: value})


def test_a_type_that_is_said_wins_over_that_of_the_default() -> None:
    replace(RECIPE, types={"epochs": "text"}).check_types({"epochs": "auto"})
