"""The SHA-256 of a file, read in pieces."""

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
