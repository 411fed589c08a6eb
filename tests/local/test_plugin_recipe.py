"""Run `orch recipes new`, add a module to the recipe, and train it on two hosts."""

from __future__ import annotations

import json

from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace

CHECK_VARIABLES = """
import os
from parts.names import RECIPE
assert (os.environ["TOY"], os.environ["OWN"]) == (RECIPE, "user's")
"""


def test_new_recipe_trains(two_hosts: Workspace) -> None:
    process = expect_exit(two_hosts.orch("recipes", "new", "my-own"))
    assert "orch train my-own --recipe-path my_own --ppn 2" in process.stdout
    assert "my-own" in two_hosts.orch("recipes", "--recipe-path", "my_own").stdout
    recipe = two_hosts.folder / "my_own"
    (recipe / "parts").mkdir()
    (recipe / "parts" / "names.py").write_text('RECIPE = "recipe\'s"\n')
    with (recipe / "recipe.toml").open("a") as file:
        file.write('\n[environment]\nTOY = "recipe\'s"\nOWN = "recipe\'s"\n')
    with (recipe / "train.py").open("a") as file:
        file.write(CHECK_VARIABLES)
    options = ("--env", "OWN=user's", "--precision", "fp32", "--preset", "long", *two_hosts.options, "--json")
    process = two_hosts.orch("train", "my-own", "--recipe-path", "my_own", *options)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["world_size"] == 2
    assert result["after"]["loss"] < result["before"]["loss"] / 2
