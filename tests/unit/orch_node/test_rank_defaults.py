"""Variables that a recipe gives its ranks: there unless somebody else has set them."""

from __future__ import annotations

import pytest
from orch_node.protocol.environment import apply_defaults, defaults

from orchestrator import load
from orchestrator.errors import OrchError
from orchestrator.operations import recipes

VARIABLE = {"SOME_SETTING": "1"}


def test_a_variable_that_nobody_set_is_the_recipes() -> None:
    assert apply_defaults({"A": "1", **defaults(VARIABLE)})["SOME_SETTING"] == "1"


@pytest.mark.parametrize("own", ["0", ""])
def test_what_the_user_set_stays(own: str) -> None:
    given = {"SOME_SETTING": own, **defaults(VARIABLE)}
    assert apply_defaults(given)["SOME_SETTING"] == own


def test_a_script_of_ones_own_has_none() -> None:
    assert apply_defaults({"A": "1", **defaults({})}) == {"A": "1"}


@pytest.mark.parametrize("name", ["", "A=B", "A B", "1A"])
def test_a_name_that_is_no_variable_is_refused(tmp_path, name: str) -> None:
    folder = recipes.new("mine", tmp_path)
    path = folder / "recipe.toml"
    path.write_text(path.read_text() + f'\n[environment]\n"{name}" = "1"\n')
    with pytest.raises(OrchError, match="environment"):
        load.recipe("mine", (tmp_path,))
