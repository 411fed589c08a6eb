"""Files that others may be reading, and that are read again: their user's alone, and written whole
or not at all, also where the power fails."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PRIVATE = 0o600


def private(path: str, flags: int) -> int:
    """What `open` takes as its opener: a new file is its user's alone, whatever the umask."""
    return os.open(path, flags, PRIVATE)


def write(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """All of it or nothing is there, also for who reads meanwhile and where the power fails; it is
    on the disk when this returns, and this user's alone unless `mode` says more. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    staging = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
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
    """Until then a name that is new in a folder may be forgotten."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems cannot; the file itself is whole
        pass
    finally:
        os.close(descriptor)
