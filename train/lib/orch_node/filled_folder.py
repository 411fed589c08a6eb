"""Fill a folder once with known content: the folder is trusted, complete and marked, or not there.

`node.py receive-folder SOURCE FOLDER` copies an unpacked archive there.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from orch_node import trust, whole_files
from orch_node.trust import UntrustedError

MARK = ".orch-content"  # holds the hash of the content; written after everything else


def main(argv: list[str]) -> int:
    """Copy the folder SOURCE to FOLDER unless the same content is there."""
    source, folder = map(Path, argv)
    try:
        fill_once(folder, hash_of(source), lambda part: copy(source, part))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def copy(source: Path, part: Path) -> None:
    """Copy all files of a folder into another."""
    shutil.copytree(source, part, dirs_exist_ok=True)


def hash_of(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of all files, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def fill_once(folder: Path, content: str, fill: Callable[[Path], None]) -> bool:
    """Fill a folder unless it has this content; concurrent callers wait for the first.

    Args:
        folder: gets its name when it is complete. A folder with another mark is replaced.
        content: the hash that its mark holds.
        fill: writes the content into an empty folder.

    Returns:
        Whether the folder was filled now.

    Raises:
        UntrustedError: if another user could have written the folder, or one above it.
        OSError: if it cannot be written, and what `fill` raises.
    """
    trust.check_folder(folder.parent, make=True)
    parts = f".{folder.name}.part-"
    with trust.open_private(folder.with_name(f".{folder.name}.lock")) as lock:
        locked = lock_if_possible(lock)
        if has_content(folder, content):
            return False
        if locked:
            for leftover in folder.parent.glob(f"{glob.escape(parts)}*"):
                shutil.rmtree(leftover)  # of a process that was killed
        part = Path(tempfile.mkdtemp(prefix=parts, dir=folder.parent))
        try:
            fill(part)
            whole_files.write(part / MARK, content)
            return give_name(part, folder, content)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def lock_if_possible(file: BinaryIO) -> bool:
    """Wait for the lock; return False on a file system without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def give_name(part: Path, folder: Path, content: str) -> bool:
    """Move the filled folder to its place; return False if another process was faster."""
    if folder.exists():
        shutil.rmtree(folder)
    try:
        part.rename(folder)
    except OSError:
        if not has_content(folder, content):
            raise
        return False
    return True


def has_content(folder: Path, content: str) -> bool:
    """Return whether a folder is complete and has this content.

    Raises:
        UntrustedError: if another user could have written the folder or its mark.
    """
    try:
        trust.check_folder(folder)
        with open(trust.open_file(folder / MARK, os.O_RDONLY), "rb") as mark:
            return mark.read(len(content) + 1) == content.encode()
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UntrustedError(str(folder), "it is not a folder") from None
        return False
