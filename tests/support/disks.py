"""Small file systems, which tests fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import report_missing


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of this size; skip the test if none can be mounted here."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    result = subprocess.run(mount, capture_output=True, text=True)
    if result.returncode:
        report_missing(f"no file system can be mounted here: {result.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, free_bytes: int = 0) -> None:
    """Fill a file system except for its last bytes."""
    with (folder / "data").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() - free_bytes))
