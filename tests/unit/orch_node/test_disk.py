"""Files on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.disk import Appender, Reserve, describe_on_node, describe_output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a file system of 64 KB."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode and "CI" not in os.environ:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "data").open("wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_reserved_space_is_used_on_a_full_disk(small_disk: Path) -> None:
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


def test_missing_space_is_reported_when_it_is_reserved(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        Reserve(small_disk / "room", 1 << 20)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "node1: /a/b is full (No space left on device)"),
        (errno.EDQUOT, "node1: /a/b is over its quota (Disk quota exceeded)"),
        (errno.EIO, "node1: /a/b is on a disk that fails (Input/output error)"),
        (errno.EROFS, "node1: /a/b is read-only (Read-only file system)"),
        (errno.EACCES, "node1: /a/b cannot be written (Permission denied)"),
    ],
    ids=["full", "quota", "broken", "read-only", "no permission"],
)
def test_disk_problem_is_described(number: int, message: str) -> None:
    assert describe_on_node("node1", Path("/a/b"), OSError(number, os.strerror(number))) == message
    assert f"node1: {describe_output('/a/b', os.strerror(number))}" == message
