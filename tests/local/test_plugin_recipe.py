"""Run `orch recipes new`, and train the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit

CHECK_VARIABLES = """
import os
assert os.environ["TOY"] == "recipe's" and os.environ["OWN"] == "user's"
"""


def test_new_recipe_trains(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = expect_exit(orch("recipes", "new", "my-own", warm=False))
    assert "orch train my-own --recipe-path my_own --ppn 2" in process.stdout
    assert "my-own" in orch("recipes", "--recipe-path", "my_own").stdout
    with (tmp_path / "my_own" / "recipe.toml").open("a") as file:
        file.write('\n[environment]\nTOY = "recipe\'s"\nOWN = "recipe\'s"\n')
    with (tmp_path / "my_own" / "train.py").open("a") as file:
        file.write(CHECK_VARIABLES)
    monkeypatch.setenv("OWN", "user's")
    options = ("--ppn", "2", "--precision", "fp32", "--preset", "long")
    process = orch("train", "my-own", "--recipe-path", "my_own", *options, "--json", timeout=200)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["world_size"] == 2
    assert result["after"]["loss"] < result["before"]["loss"] / 2
