"""Read the files that a request names."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.load import inputs
from orchestrator.planning.request import TrainRequest


@pytest.mark.parametrize(
    ("folder", "has_project"),
    [
        pytest.param(".", True, id="in the current folder"),
        pytest.param("src", True, id="in the folder src"),
        pytest.param("lib", False, id="not found here"),
    ],
)
def test_project_of_a_module_is_sent_if_this_machine_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, has_project: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'my-model'\ndependencies = []\n")
    (tmp_path / folder / "my_model").mkdir(parents=True)
    (tmp_path / folder / "my_model/train.py").touch()
    monkeypatch.chdir(tmp_path)
    request = TrainRequest(recipe="my_model.train", module=True)
    result = inputs(request, image="the image").recipe
    assert (result.project is not None) is has_project
    assert result.source_folder == (str(tmp_path / "src") if folder == "src" else "")
