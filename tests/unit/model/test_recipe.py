"""The settings of a recipe: defaults, presets and values of the user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import RequestError
from orchestrator.model.recipe import Recipe, Setting

RECIPE = Recipe(
    name="qa",
    script="/recipes/qa.py",
    declared={
        "train_file": Setting(),
        "epochs": Setting("number", 3.0),
        "shuffle": Setting("switch"),
        "dataset_name": Setting(),
        "seed": Setting("integer", 7),
    },
    defaults={"train_file": "/data/a.json", "epochs": 2, "shuffle": True},
    excludes={"dataset_name": ("train_file",)},
    presets={"full": {"dataset_name": "squad", "epochs": 3}},
    precisions={"bf16": ("--bf16",), "fp32": ()},
)


def test_user_values_win_over_presets_and_these_over_defaults() -> None:
    assert RECIPE.settings(None, {"epochs": 5})["epochs"] == 5
    assert RECIPE.settings("full", {})["epochs"] == 3
    assert RECIPE.settings("full", {"epochs": 7})["epochs"] == 7
    # Settings remove the defaults that they exclude.
    assert "train_file" not in RECIPE.settings(None, {"dataset_name": "squad"})
    assert "train_file" not in RECIPE.settings("full", {})
    assert RECIPE.settings("full", {"train_file": "/mine.json"})["train_file"] == "/mine.json"


def test_setting_or_preset_that_cannot_be_used_is_refused() -> None:
    with_token = replace(RECIPE, declared={"token": Setting()})
    with pytest.raises(RequestError, match="no preset 'ful'"):
        RECIPE.settings("ful", {})
    for recipe, name, message, hint in (
        (RECIPE, "epocs", "has no setting 'epocs'", "Did you mean 'epochs'?"),
        (with_token, "token", "--set token: the record of the run would show a secret", "orch_secrets"),
        (RECIPE, "output_dir", "--set output_dir: orch passes --output_dir itself", ""),
        (RECIPE, "use_ipex", "--set use_ipex: orch passes --use_ipex itself", ""),
        (RECIPE, "bf16", "--set bf16: orch passes --bf16 itself", ""),
    ):
        with pytest.raises(RequestError, match=message) as exc_info:
            recipe.check({name: 1})
        assert hint in exc_info.value.hint


def test_value_of_a_wrong_type_is_rejected() -> None:
    for name, value, expected_type in (
        ("epochs", "abc", "a number"),  # text
        ("epochs", "nan", "a number"),
        ("epochs", True, "a number"),  # bool
        ("seed", "1.5", "a whole number"),  # fraction
        ("shuffle", "maybe", "true or false"),  # no bool
    ):
        with pytest.raises(RequestError, match=f"--set {name}={value}: not {expected_type}"):
            RECIPE.check({name: value})
    RECIPE.check({"epochs": "1e-3", "seed": "7", "shuffle": "no", "dataset_name": "7"})
