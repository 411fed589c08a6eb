"""Describe disks that cannot be written, and reserve space for what must be written later."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from orch_node import atomic_write
from orch_node.atomic_write import private, sync_folder, write_all

DESCRIPTIONS = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is over its quota",
    errno.EIO: "is on a disk that fails",
    errno.EROFS: "is read-only",
}
TEST_BYTES = 1 << 16


def describe_on_node(node: str, path: str | Path, error: OSError) -> str:
    """Return the error with its node: `node1: /data/runs/x is full (No space left on device)`."""
    return f"{node}: {describe_error(path, error)}"


def describe_error(path: str | Path, error: OSError) -> str:
    """Return what is wrong with the disk of a path."""
    text = DESCRIPTIONS.get(error.errno or 0, "cannot be written")
    with contextlib.suppress(OSError):
        status = os.statvfs(path if os.path.exists(path) else os.path.dirname(str(path)))
        if error.errno == errno.ENOSPC and status.f_files and not status.f_favail:
            text = "has no free inodes"
    return f"{path} {text} ({error.strerror or error})"


def describe_output(path: str | Path, output: str) -> str:
    """Return what is wrong with the disk of a path, from the output of a program (C locale)."""
    number = next((number for number in DESCRIPTIONS if os.strerror(number) in output), 0)
    return describe_error(path, OSError(number, os.strerror(number) if number else output))


def write_error(folder: Path) -> OSError | None:
    """Return the error of writing a small file to a folder, or None."""
    try:
        atomic_write.write(folder / ".room", bytes(TEST_BYTES))
        (folder / ".room").unlink()
    except OSError as error:
        return error
    return None


class Reserve:
    """Reserved space for a file that is written later."""

    def __init__(self, path: Path, size: int) -> None:
        """Reserve the space.

        Raises:
            OSError: if there is not enough.
        """
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self.file, 0, size)  # glibc writes zeros if a network file system cannot reserve space

    def become(self, target: Path, content: bytes) -> None:
        """Write the content and rename the file, so that it is complete or does not exist."""
        os.lseek(self.file, 0, os.SEEK_SET)
        write_all(self.file, content)
        os.ftruncate(self.file, len(content))
        os.fsync(self.file)
        self.path.replace(target)
        os.close(self.file)
        sync_folder(target.parent)


class Appender:
    """A file that grows by whole pieces; a piece that does not fit is not written at all.

    Attributes:
        problem: the first error, or None.
    """

    def __init__(self, path: Path) -> None:
        self.file = open(path, "ab", buffering=0, opener=private)  # noqa: SIM115
        self.problem: OSError | None = None

    def write(self, piece: bytes) -> None:
        """Append a piece, or remember the error."""
        size = os.fstat(self.file.fileno()).st_size
        try:
            write_all(self.file.fileno(), piece)
        except OSError as error:
            self.problem = self.problem or error
            os.ftruncate(self.file.fileno(), size)
