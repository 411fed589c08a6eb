"""Check that damage of any kind to a checkpoint is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from orch_training import checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint_folder = tmp_path / "checkpoint-10"
    checkpoint_folder.mkdir()
    (checkpoint_folder / "weights").write_bytes(b"weights")
    checkpoint.seal(checkpoint_folder, step=10)
    return checkpoint_folder


def test_damaged_manifest_is_reported(folder: Path) -> None:
    for text in ("", "{", "[]", "7", "{}", '{"schema": 1, "files": 7}', "[" * 100_000, "\0" * 40):
        (folder / "manifest.json").write_text(text)
        assert "damaged" in (checkpoint.find_problem(folder) or "")


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "a/../../x", "", "."])
def test_manifest_names_only_files_of_its_checkpoint(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["weights"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "outside of the checkpoint" in (checkpoint.find_problem(folder) or "")


def test_changed_file_is_reported(folder: Path) -> None:
    for content, problem in (
        (b"Weights", "weights does not match its checksum"),  # changed
        (b"weight", "weights has 6 bytes, not 7"),  # shorter
        (b"weights.", "weights has 8 bytes, not 7"),  # longer
        (None, "weights: No such file or directory"),  # missing
    ):
        (folder / "weights").unlink()
        if content is not None:
            (folder / "weights").write_bytes(content)
        assert checkpoint.find_problem(folder) == problem


def test_publish_replaces_a_damaged_checkpoint(tmp_path: Path, folder: Path) -> None:
    staged = shutil.copytree(folder, tmp_path / ".checkpoint-staging")
    (folder / "weights").unlink()
    checkpoint.publish(staged, folder)
    assert checkpoint.find_problem(folder) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_rotate_keeps_the_newest_checkpoints(tmp_path: Path) -> None:
    for step in (1, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    checkpoint.rotate(tmp_path, -1)
    assert len(checkpoint.list_checkpoints(tmp_path)) == 3
    checkpoint.rotate(tmp_path, 2)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-9"]
