"""Write private files atomically: readers and a power failure never see a partial file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read if it is new. This is an opener for open()."""
    return os.open(path, flags, PRIVATE)


@contextlib.contextmanager
def opened(path: str | Path, flags: int) -> Iterator[int]:
    """Yield a descriptor of a file or folder, and close it with the context."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Write a file atomically, and flush it to the disk.

    Args:
        path: the file.
        content: its new content; text is encoded as UTF-8.
        mode: its permissions.

    Raises:
        OSError: if it cannot be written; then the old content remains.
    """
    data = content.encode() if isinstance(content, str) else content
    staging = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(staging, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor, contextlib.suppress(OSError):
        os.fsync(descriptor)  # not supported by some network file systems; the file itself is complete
