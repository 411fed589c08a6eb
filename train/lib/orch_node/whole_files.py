"""Files that others may be reading, and that are read again: their user's alone, and written whole
or not at all, also where the power fails."""

from __future__ import annotations

import os
from pathlib import Path


def private(path: str, flags: int) -> int:
    """What `open` takes as its opener: a new file is its user's alone, whatever the umask."""
    return os.open(path, flags, 0o600)


def write(path: Path, content: str | bytes) -> None:
    """On the disk when this returns. Raises OSError."""
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(staging, "wb", opener=private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except OSError:
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
