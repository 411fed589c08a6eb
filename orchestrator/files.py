"""Files of this machine: their hashes and owners, writing them whole, and writing below one folder
names that somebody else has chosen."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pwd
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from orch_node import whole_files
from orch_node.whole_files import PRIVATE

CHUNK = 1 << 20
ROOT = 0  # the user who can write everything anyway
PUBLIC = 0o666  # as the umask has it


# The same on the nodes and here.
write_whole = whole_files.write
sync_folder = whole_files.sync_folder


def sha256(path: Path) -> str:
    """As hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return digest_of(file)


def digest_of(file: BinaryIO) -> str:
    total = hashlib.sha256()
    while block := file.read(CHUNK):
        total.update(block)
    return total.hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """Gigabytes are not copied where the file system can do without."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def short_digest(paths: Iterable[Path], base: Path) -> str:
    """Of these files' names below `base` and what is in them; 12 hexadecimal digits."""
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(base)).encode() + path.read_bytes())
    return total.hexdigest()[:12]


def packed(folder: Path) -> bytes:
    """The folder as a tar archive in gzip, without bytecode; the same for the same files."""
    found = io.BytesIO()
    with gzip.GzipFile(fileobj=found, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in sources(folder):
            archive.add(path, str(path.relative_to(folder)), filter=plain)
    return found.getvalue()


def sources(folder: Path) -> list[Path]:
    """All files in it but bytecode, in order."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what tells of this machine: owner and time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def other_owner(path: Path) -> str:
    """The user that a file, or a link to it, belongs to if that is neither this one nor root: what
    it says is not trusted. Nothing if it is, or if there is no such file."""
    for status in (path.stat, path.lstat):
        try:
            uid = status().st_uid
        except OSError:
            continue
        if uid not in (os.getuid(), ROOT):
            return user_of(uid)
    return ""


def user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def own_folder(path: Path) -> Path:
    """Make a folder, and those above it that are not there, for this user alone, and such that they
    outlive a power cut. Raises OSError."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_folder(one.parent)
    return path


class Below:
    """One folder here, in which somebody else names the files: nothing outside of it is opened, no
    symbolic link in it is followed, and only plain files are written. All methods raise OSError,
    with the path from the folder on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that the file is in, and its name there."""
        *folders, name = parts_of(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if make:
            own_folder(self.folder)
        at = os.open(self.folder, flags)
        try:
            for part in folders:
                inner = open_folder(part, flags | os.O_NOFOLLOW, at, make=make)
                os.close(at)
                at = inner
            yield at, name
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder / path)) from None
        finally:
            os.close(at)

    def open(self, path: str, flags: int, *, make: bool = False) -> BinaryIO:
        """A plain file; `make`: with the folders above it. The caller closes it."""
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        with self.parent(path, make=make) as (at, name):
            # O_NONBLOCK: opening a pipe would wait for ever.
            safe = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, safe, PRIVATE, dir_fd=at)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or (writes and found.st_nlink > 1):
                os.close(descriptor)
                raise OSError(0, "it is no plain file of its own", name)
            return open(descriptor, "r+b" if writes else "rb", buffering=0 if writes else -1)

    def size(self, path: str) -> int:
        """Bytes; 0 for a file that is not there."""
        try:
            with self.open(path, os.O_RDONLY) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def sha256(self, path: str) -> str | None:
        """None if it is not there."""
        try:
            with self.open(path, os.O_RDONLY) as file:
                return digest_of(file)
        except FileNotFoundError:
            return None

    def add(self, path: str, content: bytes, at: int) -> None:
        """Write from this byte on; the file is made if need be."""
        with self.open(path, os.O_RDWR | os.O_CREAT, make=True) as file:
            file.seek(at)
            while content:
                content = content[file.write(content) :]

    def append(self, path: str, content: bytes) -> None:
        """Write at its end; the file is made if need be."""
        with self.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, make=True) as file:
            while content:
                content = content[file.write(content) :]

    def rename(self, path: str, name: str) -> None:
        """Give a file another name in its folder."""
        with self.parent(path, make=False) as (at, old):
            os.replace(old, name, src_dir_fd=at, dst_dir_fd=at)

    def remove(self, path: str) -> None:
        with self.parent(path, make=False) as (at, name):
            os.unlink(name, dir_fd=at)


def parts_of(path: str) -> tuple[str, ...]:
    """The names that a path is made of. Raises OSError for one that leads elsewhere, or nowhere."""
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(0, "this is no path below the folder", path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(0, "this is no name of a file", repr(path)) from None
    return parts


def open_folder(name: str, flags: int, at: int, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, 0o700, dir_fd=at)
        except FileExistsError:
            pass
    return os.open(name, flags, dir_fd=at)
