"""A disk that takes nothing more: told in words, and with room kept for the last words of all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from orch_node import whole_files
from orch_node.whole_files import private, sync_folder

WHAT = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is over its quota",
    errno.EIO: "is on a disk that fails",
    errno.EROFS: "is read-only",
}
TRIED = 1 << 16  # bytes
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)


def trouble(node: str, path: Path, error: OSError) -> str:
    """`node1: /data/runs/x is full (No space left on device)`."""
    return f"{node}: {words(path, error)}"


def words(path: str | Path, error: OSError) -> str:
    return f"{path} {WHAT.get(error.errno or 0, 'cannot be written')} ({error.strerror or error})"


def words_of(path: str | Path, said: str) -> str:
    """The same for the words of a program, in the C locale, that has tried to write there."""
    found = (number for number in WHAT if os.strerror(number) in said)
    number = next(found, 0)
    return words(path, OSError(number, os.strerror(number) if number else said))


def refusal(folder: Path) -> OSError | None:
    """Why nothing can be written there now, as a small file is tried."""
    try:
        whole_files.write(folder / ".room", bytes(TRIED))
        (folder / ".room").unlink()
    except OSError as error:
        return error
    return None


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
