"""Files that are written whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.files import PUBLIC, write_whole


@pytest.mark.parametrize(("words", "mode"), [({}, 0o600), ({"mode": PUBLIC}, 0o644)])
def test_a_file_is_its_users_alone_unless_it_is_to_be_read_by_others(
    tmp_path: Path, words: dict[str, int], mode: int
) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", "text", **words)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "file", "text")
    assert os.listdir(tmp_path) == ["file"]
