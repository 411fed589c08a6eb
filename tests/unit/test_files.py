"""Write files whole or not at all, and only below their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.files import PUBLIC, ConfinedFolder, write_whole


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"mode": PUBLIC}, 0o644)], ids=["private", "public"])
def test_written_file_has_its_mode(tmp_path: Path, options: dict[str, int], mode: int) -> None:
    previous_umask = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", "text", **options)
    finally:
        os.umask(previous_umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "new")
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("old", ["file", "folder"])


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
