"""A local folder in which another machine chooses the file names."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orch_node.atomic_write import PRIVATE

from orchestrator.errors import ExecuteError
from orchestrator.files import CHUNK, make_user_folder, write_all

LINKS_HINT = "orch does not follow links in a run's folder. Check the free space and the permissions."


class ConfinedFolder:
    """A local folder in which another machine chooses the file names.

    Nothing outside of the folder is opened, no symbolic link in it is followed, and only regular files are written.
    All methods raise OSError that names the path below the folder; writing() converts it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def writing(self, path: str = "", *, hint: str = LINKS_HINT) -> Iterator[None]:
        """Convert errors of the local file system into an ExecuteError.

        Args:
            path: the file that is written; '' if the errors name it.
            hint: what to do about the error.
        """
        try:
            yield
        except OSError as error:
            file = self.folder / path if path else error.filename or self.folder
            raise ExecuteError(f"{file} cannot be written: {error.strerror}.", hint=hint) from None

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
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder_fd)
                inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder_fd)
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
        with suppress(FileNotFoundError), self.open(path, os.O_RDONLY) as file:
            return os.fstat(file.fileno()).st_size
        return 0

    def digest(self, path: str) -> hashlib._Hash | None:
        """Return the SHA-256 of a file as a hash object; None if it does not exist."""
        total = hashlib.sha256()
        with suppress(FileNotFoundError), self.open(path, os.O_RDONLY) as file:
            while block := file.read(CHUNK):
                total.update(block)
            return total
        return None

    def add(self, path: str, content: bytes, offset: int) -> None:
        """Write content from the byte offset on, creating the file if needed."""
        with self.open(path, os.O_RDWR | os.O_CREAT, make=True) as file:
            file.seek(offset)
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
        with suppress(OSError), self.parent(path, make=False) as (folder_fd, name):
            return os.readlink(name, dir_fd=folder_fd)
        return None

    def remove(self, path: str) -> None:
        """Delete a file or a link if it exists."""
        with suppress(FileNotFoundError), self.parent(path, make=False) as (folder_fd, name):
            os.unlink(name, dir_fd=folder_fd)

    def remove_folder(self, path: str) -> None:
        """Delete a folder and its files, if it exists and has no folders."""
        with suppress(OSError):
            with self.parent(f"{path}/file", make=False) as (folder_fd, _):
                for name in os.listdir(folder_fd):
                    os.unlink(name, dir_fd=folder_fd)
            with self.parent(path, make=False) as (folder_fd, name):
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
