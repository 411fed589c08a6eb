"""Files that others may be reading: written whole, or not at all."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: str) -> None:
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(content)
    staging.replace(path)
