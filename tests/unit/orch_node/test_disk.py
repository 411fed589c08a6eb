"""Files on a disk that takes nothing more."""

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
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    folder = tmp_path / "small"
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


def test_what_has_its_room_is_written_on_a_full_disk(small: Path) -> None:
    reserve = Reserve(small / "room", 16384)
    fill(small)
    reserve.become(small / "outcome", b"x" * 16000)
    assert (small / "outcome").read_bytes() == b"x" * 16000
    assert not (small / "room").exists()


def test_what_does_not_fit_is_not_there_in_part(small: Path) -> None:
    log = Appender(small / "log")
    log.write(b"first\n")
    fill(small)
    log.write(b"x" * 9000 + b"\n")
    assert log.problem is not None
    assert log.problem.errno == errno.ENOSPC
    (small / "data").unlink()
    log.write(b"last\n")
    log.close()
    assert (small / "log").read_bytes() == b"first\nlast\n"


def test_no_room_is_told_at_once(small: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        Reserve(small / "room", 1 << 20)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "node1: /a/b is full (No space left on device)"),
        (errno.EDQUOT, "node1: /a/b is over its quota (Disk quota exceeded)"),
        (errno.EIO, "node1: /a/b is on a disk that fails (Input/output error)"),
        (errno.EROFS, "node1: /a/b is read-only (Read-only file system)"),
        (errno.EACCES, "node1: /a/b cannot be written (Permission denied)"),
    ],
)
def test_the_words(number: int, words: str) -> None:
    assert describe_on_node("node1", Path("/a/b"), OSError(number, os.strerror(number))) == words
    assert f"node1: {describe_output('/a/b', os.strerror(number))}" == words
