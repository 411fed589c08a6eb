from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.files import PUBLIC, write_whole


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"mode": PUBLIC}, 0o644)], ids=["private", "public"])
def test_mode_of_a_written_file(tmp_path: Path, options: dict[str, int], mode: int) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", "text", **options)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["file"]


def test_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "file", "text")
    assert os.listdir(tmp_path) == ["file"]
