"""Files of a run: its user's alone; what is read meanwhile is whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def private(path: str, flags: int) -> int:
    """What `open` takes as its opener: a new file is its user's alone, whatever the umask."""
    return os.open(path, flags, 0o600)


def write(path: Path, content: str) -> None:
    staging = path.with_name(path.name + ".tmp")
    with open(staging, "w", opener=private) as file:
        file.write(content)
    staging.replace(path)
