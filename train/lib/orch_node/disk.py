"""A disk that takes nothing more: told in words, and with room kept for the last words of all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from orch_node.whole_files import private, sync_folder

FULL = (errno.ENOSPC, errno.EDQUOT)
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)


def trouble(node: str, path: Path, error: OSError) -> str:
    """`node1: /data/runs/x is full (No space left on device)`."""
    what = "is full" if error.errno in FULL else "cannot be written"
    return f"{node}: {path} {what} ({error.strerror})"


class Reserve:
    """Room for one file, taken while there is some. Raises OSError where there is none."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self.file, 0, size)
        except OSError as error:
            if error.errno not in UNSUPPORTED:  # network file systems
                raise
            os.pwrite(self.file, bytes(size), 0)

    def become(self, target: Path, content: bytes) -> None:
        """Fill the room, and give it its name: whole, or not at all."""
        rest, at = memoryview(content), 0
        while rest:
            written = os.pwrite(self.file, rest, at)
            rest, at = rest[written:], at + written
        os.ftruncate(self.file, len(content))
        os.fsync(self.file)
        self.path.replace(target)
        os.close(self.file)
        sync_folder(target.parent)


class Appender:
    """A file that grows by whole pieces. What the disk does not take is not there in part either;
    `problem` is the first such time."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "ab", buffering=0, opener=private)  # noqa: SIM115
        self.problem: OSError | None = None

    def write(self, piece: bytes) -> None:
        before = os.fstat(self.file.fileno()).st_size
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[self.file.write(rest) or 0 :]
        except OSError as error:
            self.problem = self.problem or error
            os.ftruncate(self.file.fileno(), before)

    def close(self) -> None:
        self.file.close()
