"""Check that only this user and root could have written a path before orch uses its content.

Names that orch derives are predictable, so on shared or scratch file systems another user may have
created them first. Nothing but the standard library is needed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import BinaryIO

from orch_node.atomic_write import opened

ROOT = 0  # root can write every file in any case
WRITABLE_BY_GROUP, WRITABLE_BY_ALL = 0o020, 0o002
MAX_LINKS = 40  # the limit of the kernel
# O_DIRECTORY also mounts what an automounter provides.
WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedError(PermissionError):
    """A path that another user could have written. Its text is one sentence."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EPERM, f"{path} is not trusted: {reason}")

    def __str__(self) -> str:
        return str(self.strerror)


def check_folder(path: str | Path, *, make: bool = False) -> None:
    """Check that only this user and root can change a folder.

    Every folder from the root on must belong to this user or root, and others must not be able to
    write it. In a folder with the sticky bit (/tmp) others cannot replace an entry of this user, so
    such a folder may be passed, but not be the last one. Symbolic links obey the same rule.

    Args:
        path: the folder.
        make: create missing folders, for this user alone.

    Raises:
        UntrustedError: if another user could have written the folder or one above it.
        OSError: if there is no such folder.
    """
    parts = split(os.path.join(os.getcwd(), path))
    folder, position, links = os.open("/", WALK), "/", 0
    try:
        check(folder, position, last=not parts)
        while parts:
            name = parts.pop(0)
            if make:
                make_folder(name, folder)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                check_owner(status, os.path.join(position, name))
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = os.readlink(name, dir_fd=folder)
                parts = split(target) + parts
                if not target.startswith("/"):
                    continue
                name = position = "/"
            inner = os.open(name, WALK, dir_fd=folder)
            os.close(folder)
            folder, position = inner, os.path.join(position, name)
            check(folder, position, last=not parts)
    finally:
        os.close(folder)


def split(path: str) -> list[str]:
    """Return the names in a path; the kernel resolves '..', which may follow a symbolic link."""
    return [name for name in path.split("/") if name not in ("", ".")]


def make_folder(name: str, folder: int) -> None:
    """Create a folder of this user alone unless the name exists."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except OSError as error:
        try:  # Read-only file systems refuse existing names, too, with another error.
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise error from None


def check_own_folder(path: str | Path) -> None:
    """Raise UntrustedError if another user can change the folder or has linked it; checks no folders above it.

    For folders of an installation: who can change a folder above it can replace orch's programs, too.
    """
    check_owner(os.lstat(path), str(path))
    with opened(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) as descriptor:
        check(descriptor, str(path), last=True)


def check_tree(path: str | Path) -> None:
    """Check that only this user and root can write a file, or a folder and everything in it.

    Checks no folders above it.

    Raises:
        UntrustedError: if others can write one of them, or if one is a symbolic link.
        OSError: if there is no such file.
    """
    if stat.S_ISDIR(check_entry(path)):
        for name in os.listdir(path):
            check_tree(os.path.join(path, name))


def check_entry(path: str | Path) -> int:
    """Check that only this user and root can write a file or folder, and return its mode.

    Raises:
        UntrustedError: if others can write it, or if it is a symbolic link.
        OSError: if there is no such file.
    """
    name = os.fspath(path)
    with opened(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            raise UntrustedError(name, "it is a symbolic link")
        check(descriptor, name, last=True)
    return mode


def open_file(path: str | Path, flags: int) -> int:
    """Return a descriptor of a plain file that only this user and root can write.

    Checks the file and not the folders above it. Usable as the opener of `open`.

    Raises:
        UntrustedError: if it is a symbolic link or no plain file, or if others can write it.
        OSError: if it cannot be opened.
    """
    name = os.fspath(path)
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        safe = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, safe, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(name, "it is a symbolic link") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UntrustedError(name, "it is not a plain file")
        check(descriptor, name, last=True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_private(path: str | Path) -> BinaryIO:
    """Return a file of this user's for reading and appending; create it if it is missing.

    Raises:
        UntrustedError: if another user owns or can write it, or if it is a symbolic link.
    """
    return open(open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", buffering=0)


def check(descriptor: int, path: str, *, last: bool) -> None:
    """Raise UntrustedError unless only this user and root can write the file or folder.

    Args:
        descriptor: of the file or folder.
        path: its path, for the message.
        last: whether it is used itself; folders on the way to it may be sticky.
    """
    status = os.fstat(descriptor)
    check_owner(status, path)
    if not last and status.st_mode & stat.S_ISVTX:
        return
    writable_by_group = status.st_mode & WRITABLE_BY_GROUP and not is_private_group(descriptor)
    if status.st_mode & WRITABLE_BY_ALL or writable_by_group:
        raise UntrustedError(path, "other users can write it (`chmod go-w` prevents that)")


def check_owner(status: os.stat_result, path: str) -> None:
    """Raise UntrustedError if another user than this one and root owns the file."""
    if status.st_uid not in (os.geteuid(), ROOT):
        raise UntrustedError(path, f"it belongs to the user {user_name(status.st_uid)}")


def is_private_group(descriptor: int) -> bool:
    """Return whether a file's group has no member but its owner, and no access list adds others."""
    with contextlib.suppress(OSError):  # there is no access list, which may give others rights
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
        return False
    status = os.fstat(descriptor)
    with contextlib.suppress(KeyError):
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
        return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
    return False


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def read_file(path: str | Path) -> bytes:
    """Return the content of a file that only this user and root can write.

    A symbolic link is followed if it belongs to this user or root.

    Raises:
        UntrustedError: if another user owns the file or the link, or can write the file.
        OSError: if it cannot be read.
    """
    check_owner(os.lstat(path), str(path))
    with open(open_file(os.path.realpath(path), os.O_RDONLY), "rb") as file:
        return file.read()
