"""Write files on a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.disk import Appender, Reserve, describe_on_node, describe_output

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
    log.close()
    assert (small_disk / "log").read_bytes() == b"first\nlast\n"


def test_disk_problem_is_described() -> None:
    for number, message in (
        (errno.ENOSPC, "node1: /a/b is full (No space left on device)"),
        (errno.EDQUOT, "node1: /a/b is over its quota (Disk quota exceeded)"),
        (errno.EIO, "node1: /a/b is on a disk that fails (Input/output error)"),  # broken
        (errno.EROFS, "node1: /a/b is read-only (Read-only file system)"),
        (errno.EACCES, "node1: /a/b cannot be written (Permission denied)"),
    ):
        assert describe_on_node("node1", Path("/a/b"), OSError(number, os.strerror(number))) == message
        assert f"node1: {describe_output('/a/b', os.strerror(number))}" == message
