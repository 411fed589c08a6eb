"""Environment variables of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol.environment import apply_defaults, planned_variables, preload_variables

from orchestrator import load
from orchestrator.errors import OrchError
from orchestrator.operations.init import new_recipe

VARIABLE = {"SOME_SETTING": "1"}


def test_variables_of_the_user_win_over_those_of_a_recipe() -> None:
    for user_variables, expected in (({"A": "1"}, "1"), ({"SOME_SETTING": "0"}, "0"), ({"SOME_SETTING": ""}, "")):
        assert apply_defaults({**user_variables, **planned_variables(VARIABLE, {})})["SOME_SETTING"] == expected
        assert apply_defaults({**user_variables, **planned_variables({}, {})}) == user_variables


@pytest.mark.parametrize("name", ["", "A=B", "A B", "1A"])
def test_invalid_variable_name_of_a_recipe_is_rejected(tmp_path: Path, name: str) -> None:
    path = new_recipe("mine", tmp_path) / "recipe.toml"
    path.write_text(path.read_text() + f'\n[environment]\n"{name}" = "1"\n')
    with pytest.raises(OrchError, match="environment"):
        load.recipe("mine", (tmp_path,))


def test_variables_of_intels_openmp_are_set() -> None:
    assert preload_variables([]) == {}
    assert preload_variables(["/a/libtcmalloc.so"]) == {"LD_PRELOAD": "/a/libtcmalloc.so"}
    with_openmp = preload_variables(["/a/libiomp5.so", "/b.so"])
    assert with_openmp.keys() == {"LD_PRELOAD", "KMP_BLOCKTIME"}
