"""The settings of a recipe: defaults, presets and values of the user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import RequestError
from orchestrator.model.recipe import Recipe, Setting, as_arguments

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
    for name in ("epoch", "Epochs", "epocs"):
        with pytest.raises(RequestError, match=f"has no setting '{name}'") as exc_info:
            RECIPE.settings(None, {name: 1})
        assert "Did you mean 'epochs'?" in exc_info.value.hint
    with pytest.raises(RequestError, match="no preset 'ful'") as exc_info:
        RECIPE.settings("ful", {})
    assert "full" in exc_info.value.hint
    with pytest.raises(RequestError, match="no preset 'full'") as exc_info:
        replace(RECIPE, presets={}).settings("full", {})
    assert exc_info.value.hint == "Omit --preset; it has no presets."


def test_argument_that_orch_passes_is_no_setting() -> None:
    for name in ("output_dir", "use_ipex", "bf16"):
        with pytest.raises(RequestError, match=f"--set {name}: orch passes --{name} itself"):
            RECIPE.settings(None, {name: True})


def test_token_is_refused_because_it_would_be_recorded() -> None:
    with pytest.raises(RequestError, match="--set token: the record of the run would show a secret") as exc_info:
        replace(RECIPE, declared={"token": Setting()}).settings(None, {"token": "x"})
    assert "orch_secrets" in exc_info.value.hint


def test_hint_names_the_default_that_applies() -> None:
    for name, default in {"epochs": "2", "seed": "7"}.items():
        with pytest.raises(RequestError) as exc_info:
            RECIPE.check_types({name: "x"})
        assert f"Its default is {default}." in exc_info.value.hint


def test_settings_become_arguments() -> None:
    settings = {"a": "-x", "yes": True, "no": False, "n": 3, "lr": 3e-5}
    assert as_arguments(settings) == ("--a=-x", "--yes", "--no=false", "--n=3", "--lr=3e-05")


def test_user_scripts_have_no_settings() -> None:
    with pytest.raises(RequestError, match="--set applies to recipes only"):
        Recipe(name="mine", script="/mine.py", own_script=True).settings(None, {"a": 1})


def test_value_of_a_wrong_type_is_rejected() -> None:
    for name, value, expected_type in (
        ("epochs", "abc", "a number"),  # text
        ("epochs", "", "a number"),  # empty
        ("epochs", "nan", "a number"),
        ("epochs", True, "a number"),  # bool
        ("seed", "1.5", "a whole number"),  # fraction
        ("seed", "1e3", "a whole number"),  # exponent
        ("shuffle", "maybe", "true or false"),  # no bool
    ):
        with pytest.raises(RequestError, match=f"--set {name}={value}: not {expected_type}") as exc_info:
            RECIPE.check_types({name: value})
        assert f"expects {expected_type}" in exc_info.value.hint


def test_values_of_the_right_type_are_accepted() -> None:
    for name, values in {
        "epochs": ("2.5", "1e-3", "-1"),
        "seed": ("7",),
        "shuffle": ("no", False),
        "dataset_name": ("7",),
        "train_file": ("b.json",),
    }.items():
        for value in values:
            RECIPE.check_types({name: value})
