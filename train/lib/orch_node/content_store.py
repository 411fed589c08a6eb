"""Fill a folder once with known content: the folder is trusted, complete and marked, or not there.

`node.py unpack SOURCE FOLDER` copies an unpacked archive there.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from orch_node import atomic_write, permissions
from orch_node.permissions import UntrustedError
from orch_node.protocol.folders import EXECUTABLE, LINK, FileEntry, folder_hash

CHUNK = 1 << 20
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
    """Return the SHA-256 of the names, kinds and contents of all files, in hexadecimal digits."""
    return folder_hash(describe(folder, name) for name in all_files(folder))


def all_files(folder: Path) -> Iterator[str]:
    """Yield the paths of the files and links below a folder, except its mark."""
    for parent, folders, names in os.walk(folder):
        below = parent[len(str(folder)) + 1 :]
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (path for name in (*links, *names) if (path := os.path.join(below, name)) != MARK)


def describe(folder: Path, name: str) -> FileEntry:
    """Return the entry of a file by its path below a folder."""
    path = f"{folder}/{name}"
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return FileEntry(name, LINK, hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest())
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return FileEntry(name, EXECUTABLE if mode & stat.S_IXUSR else "", digest.hexdigest())


def remove(folder: Path) -> None:
    """Delete a folder, also one that is read-only; do nothing if there is none."""
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


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
    permissions.check_folder(folder.parent, make=True)
    parts = f".{folder.name}.part-"
    with permissions.open_private(folder.with_name(f".{folder.name}.lock")) as lock:
        locked = lock_if_possible(lock)
        if has_content(folder, content):
            return False
        if locked:
            for leftover in folder.parent.glob(f"{glob.escape(parts)}*"):
                remove(leftover)  # of a process that was killed
        part = Path(tempfile.mkdtemp(prefix=parts, dir=folder.parent))
        try:
            fill(part)
            atomic_write.write(part / MARK, content)
            return give_name(part, folder, content)
        finally:
            remove(part)


def sync(folder: Path) -> None:
    """Write a folder's files to the disk, so that its name is right even after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def lock_if_possible(file: BinaryIO, kind: int = fcntl.LOCK_EX) -> bool:
    """Wait for the lock; return False on a file system without locks."""
    try:
        fcntl.flock(file, kind)
    except OSError:
        return False
    return True


def give_name(part: Path, folder: Path, content: str) -> bool:
    """Move the filled folder to its place; return False if another process was faster."""
    remove(folder)
    try:
        part.rename(folder)
    except OSError:
        if not has_content(folder, content):
            raise
        return False
    return True


def has_content(folder: Path, content: str, check: Callable[[Path], None] = permissions.check_folder) -> bool:
    """Return whether a folder is complete and has this content.

    Args:
        folder: the folder.
        content: the hash that its mark holds.
        check: raises UntrustedError if the folder is not trusted.

    Raises:
        UntrustedError: if another user could have written the folder or its mark.
    """
    try:
        check(folder)
        with open(permissions.open_file(folder / MARK, os.O_RDONLY), "rb") as mark:
            return mark.read(len(content) + 1) == content.encode()
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UntrustedError(str(folder), "it is not a folder") from None
        return False
