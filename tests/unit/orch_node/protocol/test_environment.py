"""Environment variables of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import OrchError
from orchestrator.operations.init import new_recipe


@pytest.mark.parametrize("name", ["", "A=B", "A B", "1A"])
def test_invalid_variable_name_of_a_recipe_is_rejected(tmp_path: Path, name: str) -> None:
    path = new_recipe("mine", tmp_path) / "recipe.toml"
    path.write_text(path.read_text() + f'\n[environment]\n"{name}" = "1"\n')
    with pytest.raises(OrchError, match="environment"):
        load.recipe("mine", (tmp_path,))
