"""Files that tests create."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path


def write_files(folder: Path, texts: Mapping[str, str]) -> Path:
    """Write files by their paths relative to a folder, and return the folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_program(path: Path, text: str) -> Path:
    """Write a file that can be executed, and return its path."""
    write_files(path.parent, {path.name: text})
    path.chmod(0o755)
    return path


def set_age(path: Path, seconds: float) -> None:
    """Set how long ago a file was changed."""
    then = time.time() - seconds
    os.utime(path, (then, then))
