"""Write files: on a full disk, and a folder as a whole; no failure looks like success."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import atomic_write
from orch_node.disk import Appender, Reserve, describe_error

from tests.support.disks import fill, small_file_system


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a file system of 64 KB."""
    with small_file_system(tmp_path / "disk", "64k"):
        yield tmp_path / "disk"


def test_reserved_space_is_used_on_a_full_disk(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        Reserve(small_disk / "too large", 1 << 20)
    (small_disk / "too large").unlink(missing_ok=True)
    reserve = Reserve(small_disk / "room", 16384)
    fill(small_disk)
    reserve.become(small_disk / "outcome", b"x" * 16000)
    assert (small_disk / "outcome").read_bytes() == b"x" * 16000
    assert not (small_disk / "room").exists()


def test_line_that_does_not_fit_is_not_written_in_part(small_disk: Path) -> None:
    log = Appender(small_disk / "log")
    log.write(b"first\n")
    fill(small_disk)
    log.write(b"x" * 9000 + b"\n")
    assert log.problem.errno == errno.ENOSPC
    (small_disk / "data").unlink()
    log.write(b"last\n")
    log.file.close()
    assert (small_disk / "log").read_bytes() == b"first\nlast\n"


def test_disk_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", "64k,nr_inodes=1"), pytest.raises(OSError, match="No space") as error:
        (tmp_path / "disk" / "file").touch()
    with small_file_system(tmp_path / "other", "64k,nr_inodes=1"):
        assert "/other/file has no free inodes (" in describe_error(tmp_path / "other" / "file", error.value)


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
