"""Write private files atomically: readers and a power failure never see a partial file."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o600


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read if it is new. This is an opener for open()."""
    return os.open(path, flags, PRIVATE)


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
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # not supported by some network file systems; the file itself is complete
        pass
    finally:
        os.close(descriptor)
