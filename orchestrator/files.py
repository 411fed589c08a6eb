"""Files of this machine: their SHA-256, and folders of one user alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """As hexadecimal digits. Raises OSError."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            total.update(block)
    return total.hexdigest()


def own_folder(path: Path) -> Path:
    """Make a folder, and those above it that are not there, for this user alone. Raises OSError."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    return path
