"""Write files only below their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.runs.confined_folder import ConfinedFolder


@pytest.mark.parametrize("kind", ["pipe", "hard link", "folder"])
def test_confined_folder_writes_only_plain_files(tmp_path: Path, kind: str) -> None:
    folder, outside_file = tmp_path / "r", tmp_path / "mine"
    folder.mkdir()
    outside_file.write_text("mine")
    if kind == "pipe":
        os.mkfifo(folder / "x")
    elif kind == "hard link":
        os.link(outside_file, folder / "x")
    else:
        (folder / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        ConfinedFolder(folder).add("x", b"evil", 0)
    assert outside_file.read_text() == "mine"
