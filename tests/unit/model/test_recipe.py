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


def test_setting_removes_the_defaults_that_it_excludes() -> None:
    assert "train_file" not in RECIPE.settings(None, {"dataset_name": "squad"})
    assert "train_file" not in RECIPE.settings("full", {})
    assert RECIPE.settings("full", {"train_file": "/mine.json"})["train_file"] == "/mine.json"


def test_unknown_setting_or_preset_names_the_nearest() -> None:
    with pytest.raises(RequestError, match="has no setting 'epocs'") as exc_info:
        RECIPE.settings(None, {"epocs": 1})
    assert "Did you mean 'epochs'?" in exc_info.value.hint
    with pytest.raises(RequestError, match="no preset 'ful'") as exc_info:
        RECIPE.settings("ful", {})
    assert "full" in exc_info.value.hint


def test_argument_that_orch_passes_is_no_setting() -> None:
    for name in ("output_dir", "use_ipex", "bf16"):
        with pytest.raises(RequestError, match=f"--set {name}: orch passes --{name} itself"):
            RECIPE.settings(None, {name: True})


def test_token_is_refused_because_it_would_be_recorded() -> None:
    with pytest.raises(RequestError, match="--set token: the record of the run would show a secret") as exc_info:
        replace(RECIPE, declared={"token": Setting()}).settings(None, {"token": "x"})
    assert "orch_secrets" in exc_info.value.hint


def test_value_of_a_wrong_type_is_rejected() -> None:
    for name, value, expected_type in (
        ("epochs", "abc", "a number"),  # text
        ("epochs", "nan", "a number"),
        ("epochs", True, "a number"),  # bool
        ("seed", "1.5", "a whole number"),  # fraction
        ("shuffle", "maybe", "true or false"),  # no bool
    ):
        with pytest.raises(RequestError, match=f"--set {name}={value}: not {expected_type}") as exc_info:
            RECIPE.check_types({name: value})
        assert f"expects {expected_type}" in exc_info.value.hint
    RECIPE.check_types({"epochs": "1e-3", "seed": "7", "shuffle": "no", "dataset_name": "7"})
