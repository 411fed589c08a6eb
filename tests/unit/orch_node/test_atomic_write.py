"""Check that a folder gets its name as a whole, and that no failure looks like success."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node import atomic_write


def test_folder_of_a_faster_process_remains(tmp_path: Path) -> None:
    target = tmp_path / "content"
    with atomic_write.folder(target) as staging:
        (staging / "file").write_text("slower")
        target.mkdir()
        (target / "file").write_text("faster")
    assert (target / "file").read_text() == "faster"
    assert list(tmp_path.iterdir()) == [target]


def test_failure_to_write_the_content_is_raised_although_the_folder_exists(tmp_path: Path) -> None:
    target = tmp_path / "content"
    target.mkdir()
    with pytest.raises(OSError, match="No space left"), atomic_write.folder(target):
        raise OSError("No space left")
    assert list(tmp_path.iterdir()) == [target]
