"""Check that damage of any kind to a checkpoint is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_training import checkpoint
from orch_training.errors import RecipeError

DAMAGE = ("", "{", "[]", "7", "{}", '{"schema": 1, "files": 7}', "[" * 100_000, "\0" * 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint_folder = tmp_path / "checkpoint-10"
    checkpoint_folder.mkdir()
    (checkpoint_folder / "weights").write_bytes(b"weights")
    checkpoint.seal(checkpoint_folder, step=10)
    return checkpoint_folder


def test_sealed_checkpoint_is_whole(folder: Path) -> None:
    assert checkpoint.find_problem(folder) is None


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_manifest_is_reported(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert "damaged" in (checkpoint.find_problem(folder) or "")


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "a/../../x", "", "."])
def test_manifest_names_only_files_of_its_checkpoint(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["weights"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "outside of the checkpoint" in (checkpoint.find_problem(folder) or "")


@pytest.mark.parametrize("content", [b"", b"weight", b"Weights", b"weights."])
def test_changed_file_is_reported(folder: Path, content: bytes) -> None:
    (folder / "weights").write_bytes(content)
    assert "weights" in (checkpoint.find_problem(folder) or "")


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "[" * 100_000])
def test_damaged_json_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "before.json"
    assert checkpoint.read_json(path) is None
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"before\.json is damaged"):
        checkpoint.read_json(path)
