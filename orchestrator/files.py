"""Local files: hashes, owners, atomic writes, and writes confined to one folder."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import pwd
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from orch_node import atomic_write
from orch_node.atomic_write import PRIVATE

CHUNK = 1 << 20
ROOT = 0  # the user who can write everything anyway
PUBLIC = 0o666  # before the umask


# Controller and nodes share these functions.
write_whole = atomic_write.write
sync_folder = atomic_write.sync_folder


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, for which other processes wait."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    return digest_of_stream(file).hexdigest()


def digest_of_stream(file: BinaryIO) -> hashlib._Hash:
    """Return the SHA-256 of a file as a hash object, to which more content can be added."""
    total = hashlib.sha256()
    while block := file.read(CHUNK):
        total.update(block)
    return total


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write content to an unbuffered file."""
    while content:
        content = content[file.write(content) :]


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file if the file system allows it, otherwise copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def short_digest(paths: Iterable[Path], base: Path) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of files: their names below base, and their contents."""
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(base)).encode() + path.read_bytes())
    return total.hexdigest()[:12]


def pack_files(target: IO[bytes], folder: Path, paths: Iterable[Path]) -> None:
    """Write files below a folder as a reproducible gzipped tar archive; links of any kind stay links.

    Raises:
        OSError: if a file cannot be read.
    """
    with (
        gzip.GzipFile(fileobj=target, mode="wb", mtime=0, compresslevel=1) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in paths:
            archive.add(path, path.relative_to(folder), filter=anonymize)


def source_files(folder: Path) -> list[Path]:
    """Return all files in a folder except bytecode, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def anonymize(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time from an archive member, and normalize its mode."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def other_owner(path: Path) -> str:
    """Return the owner of a file, or of a link to it, unless that is this user or root.

    Files of other users are not trusted. The result is empty if the owner is trusted or there is no such file.
    """
    for status in (path.stat, path.lstat):
        try:
            uid = status().st_uid
        except OSError:
            continue
        if uid not in (os.getuid(), ROOT):
            try:
                return pwd.getpwuid(uid).pw_name
            except KeyError:
                return str(uid)
    return ""


def make_user_folder(path: Path) -> Path:
    """Create a folder and its missing parents for this user only, and flush them to disk.

    Raises:
        OSError: if a folder cannot be created.
    """
    if path.is_dir():
        return path
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    return path


class ConfinedFolder:
    """A local folder in which another machine chooses the file names.

    Nothing outside of the folder is opened, no symbolic link in it is followed, and only regular files are written.
    All methods raise OSError that names the path below the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder that contains the file, and the file's name in it."""
        *folders, name = path_components(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if make:
            make_user_folder(self.folder)
        folder_fd = os.open(self.folder, flags)
        try:
            for part in folders:
                inner = open_folder(part, flags | os.O_NOFOLLOW, folder_fd, make=make)
                os.close(folder_fd)
                folder_fd = inner
            yield folder_fd, name
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder / path)) from None
        finally:
            os.close(folder_fd)

    def open(self, path: str, flags: int, *, make: bool = False) -> BinaryIO:
        """Open a regular file, creating its parent folders if `make` is set; the caller closes it."""
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        with self.parent(path, make=make) as (folder_fd, name):
            # Without O_NONBLOCK, opening a named pipe would wait forever.
            safe = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, safe, PRIVATE, dir_fd=folder_fd)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or (writes and status.st_nlink > 1):
                os.close(descriptor)
                raise OSError(0, "not a regular file, or it has several links", name)
            return open(descriptor, "r+b" if writes else "rb", buffering=0 if writes else -1)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; 0 if it does not exist."""
        try:
            with self.open(path, os.O_RDONLY) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def digest(self, path: str) -> hashlib._Hash | None:
        """Return the SHA-256 of a file as a hash object; None if it does not exist."""
        try:
            with self.open(path, os.O_RDONLY) as file:
                return digest_of_stream(file)
        except FileNotFoundError:
            return None

    def add(self, path: str, content: bytes, offset: int) -> None:
        """Write content from the byte offset on, creating the file if needed."""
        with self.open(path, os.O_RDWR | os.O_CREAT, make=True) as file:
            file.seek(offset)
            write_all(file, content)

    def append(self, path: str, content: bytes) -> None:
        """Write content at the end of a file, creating it if needed."""
        with self.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, make=True) as file:
            write_all(file, content)

    def move(self, path: str, new_path: str) -> None:
        """Give a file or a link another path, creating its parent folders; replace what is there, except a folder."""
        with (
            self.parent(new_path, make=True) as (new_fd, new_name),
            self.parent(path, make=False) as (old_fd, old_name),
        ):
            os.replace(old_name, new_name, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents unless they exist."""
        with self.parent(f"{path}/entry", make=True):
            pass

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link, replacing a file or a link; the caller checks where its target leads."""
        self.remove(path)
        with self.parent(path, make=True) as (folder_fd, name):
            os.symlink(target, name, dir_fd=folder_fd)

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None if there is none."""
        try:
            with self.parent(path, make=False) as (folder_fd, name):
                return os.readlink(name, dir_fd=folder_fd)
        except OSError:
            return None

    def remove(self, path: str) -> None:
        """Delete a file or a link if it exists."""
        with suppress(FileNotFoundError), self.parent(path, make=False) as (folder_fd, name):
            os.unlink(name, dir_fd=folder_fd)

    def remove_folder(self, path: str) -> None:
        """Delete a folder unless it has entries or does not exist."""
        with suppress(OSError), self.parent(path, make=False) as (folder_fd, name):
            os.rmdir(name, dir_fd=folder_fd)


def path_components(path: str) -> tuple[str, ...]:
    """Return the names in a relative path.

    Raises:
        OSError: if the path leads out of its folder or is not a path.
    """
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(0, "not a path below the folder", path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(0, "not a file name", repr(path)) from None
    return parts


def open_folder(name: str, flags: int, parent_fd: int, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, 0o700, dir_fd=parent_fd)
        except FileExistsError:
            pass
    return os.open(name, flags, dir_fd=parent_fd)
