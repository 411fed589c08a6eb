"""Write private files atomically: readers and a power failure never see a partial file. Read them without waiting."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600
MAX_BYTES = 1 << 28  # of a file that is read as a whole


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read if it is new. This is an opener for open()."""
    return os.open(path, flags, PRIVATE)


def plain(path: str, flags: int) -> int:
    """Open a plain file; a pipe would wait for its other end. This is an opener for open().

    Raises:
        OSError: if it is not a plain file, or cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", path)
    return descriptor


def read(path: Path) -> bytes:
    """Return the content of a plain file of at most MAX_BYTES.

    Raises:
        OSError: if it is something else, or cannot be read.
    """
    with open(path, "rb", opener=plain) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:  # also of a file with holes, which would fill the memory
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


@contextlib.contextmanager
def opened(path: str | Path, flags: int) -> Iterator[int]:
    """Yield a descriptor of a file or folder, and close it with the context."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a descriptor; a signal or a full disk may end a write before the last of them."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def write(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Write a file atomically, and flush it to the disk.

    Args:
        path: the file.
        content: its new content; text is encoded as UTF-8.
        mode: its permissions.

    Raises:
        OSError: if it cannot be written; then the old content remains.
    """
    data = content.encode() if isinstance(content, str) else content
    staging = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(staging, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Yield a private folder that gets its name with the end of the context, unless another process was faster."""
    staging = Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
    try:
        yield staging
        try:
            staging.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor, contextlib.suppress(OSError):
        os.fsync(descriptor)  # not supported by some network file systems; the file itself is complete
