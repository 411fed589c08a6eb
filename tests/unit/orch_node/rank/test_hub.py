from __future__ import annotations

from pathlib import Path

import pytest
from orch_node import program
from orch_node.rank.hub import data_copy, with_synced_hub


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "ROOT", tmp_path)
    (tmp_path / "hub").mkdir()
    return tmp_path


def test_node_without_copies_changes_nothing(root: Path) -> None:
    assert with_synced_hub({"A": "1"}) == {"A": "1"}


@pytest.mark.parametrize("name", ["models--me--tiny", "datasets--rows"])
def test_copies_are_used_without_the_hub(root: Path, name: str) -> None:
    (root / "hub" / name).mkdir()
    folder = str(root / "hub")
    expected = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": folder, "HUGGINGFACE_HUB_CACHE": folder}
    assert with_synced_hub({"A": "1", "HF_HOME": ""}) == {"A": "1", "HF_HOME": "", **expected}
    assert with_synced_hub({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"])
def test_cache_of_the_user_takes_precedence(root: Path, variable: str) -> None:
    (root / "hub/models--tiny").mkdir()
    assert with_synced_hub({variable: "/own"}) == {variable: "/own"}


def test_revision_of_a_data_set_is_found_by_its_name_and_its_commit(tmp_path: Path) -> None:
    storage = tmp_path / "datasets--me--rows"
    (storage / "snapshots/abc").mkdir(parents=True)
    (storage / "refs").mkdir()
    (storage / "refs/main").write_text("abc")
    assert [data_copy(tmp_path, "me/rows", text) for text in ("main", "abc", "v2")] == [
        storage / "snapshots/abc",
        storage / "snapshots/abc",
        None,
    ]
    assert data_copy(tmp_path, "me/other", "main") is None
