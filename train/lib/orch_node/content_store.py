"""Keep folders that a controller sends: complete, marked by the hash of their content, and trusted, or not there.

  node.py store use FOLDER RUN_DIR ...      exit with ABSENT if the folder is not there
  node.py store receive FOLDER RUN_DIR ...  read the folder from stdin, as a gzipped tar archive
  node.py store send FOLDER RUN_DIR         print this archive
  node.py store unpack FOLDER SOURCE        copy the folder SOURCE to FOLDER unless the same content is there

Folders of the store are read-only, and named by the hash of their content. `use` and `receive` record that the run uses
the folder, and make a copy of it for the run (--copy COPY). A copy that exists stays as the run has left it, except for
the files that differ between FOLDER and the folder from which it was made; with --keep it does not need the folder.
Nodes that share the store may do this at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from orch_node import atomic_write, disk, permissions
from orch_node.permissions import UntrustedError
from orch_node.protocol import files
from orch_node.protocol.files import EXECUTABLE, LINK, FileEntry, folder_hash
from orch_node.standalone import receive_files

CHUNK = 1 << 20
MARK = ".orch-content"  # holds the hash of the content; written after everything else
ABSENT = 3  # the exit code of `use`
PART = ".part-"  # in the name of an incomplete folder
UNUSED_SECONDS = 30 * 24 * 3600.0
INCOMPLETE_SECONDS = 24 * 3600.0  # longer than any transfer takes
SEND_CODE = "The project has changed; `orch resume --code` sends it"
CHANGED = "its files have changed since the run was planned. Start it again"


class StoreError(Exception):
    """A folder cannot be received or copied. The text says why."""


def main(argv: list[str]) -> int:
    """Run the command of the arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="node.py store")
    parser.add_argument("command", choices=("use", "receive", "send", "unpack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("run_dir", metavar="RUN_DIR or SOURCE")
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(argv)
    os.umask(0o077)
    folder = options.folder
    try:
        if options.command == "send":
            if not is_complete(folder):
                raise StoreError(f"no copy of the project as the run was started with. {SEND_CODE}")
            archive = ("tar", "-I", "gzip -1", "-c", f"--exclude=./{MARK}", "-C", str(folder), ".")
            return subprocess.run(archive).returncode
        if options.command == "unpack":
            source = Path(options.run_dir)
            fill_once(folder, hash_of(source), lambda part: shutil.copytree(source, part, dirs_exist_ok=True))
            return 0
        if options.command == "receive":
            receive(folder)
        is_used = is_complete(folder) and use(folder, options.run_dir, options.copy)
        if not is_used and not (options.keep and options.copy.is_dir()):
            return ABSENT
    except (StoreError, permissions.UntrustedError) as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(disk.describe_error(folder, error))
    return 0


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
    return FileEntry(name, EXECUTABLE if mode & stat.S_IXUSR else "", receive_files.digest(path))


def remove(folder: Path) -> None:
    """Delete a folder, also one that is read-only; do nothing if there is none."""
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def fill_once(folder: Path, content: str, fill: Callable[[Path], object]) -> bool:
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
    with permissions.open_private(folder.with_name(f".{folder.name}.lock")) as lock:
        locked = lock_if_possible(lock)
        if has_content(folder, content):
            return False
        for leftover in folder.parent.glob(f".{glob.escape(folder.name)}{PART}*") if locked else ():
            remove(leftover)  # of a process that was killed
        with new_part(folder) as part:
            fill(part)
            atomic_write.write(part / MARK, content)
            return give_name(part, folder, content)


@contextlib.contextmanager
def new_part(folder: Path) -> Iterator[Path]:
    """Yield an empty folder next to this one, and delete it with the context unless it has got another name."""
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}{PART}", dir=folder.parent))
    try:
        yield part
    finally:
        remove(part)


def lock_if_possible(file: BinaryIO, kind: int = fcntl.LOCK_EX) -> bool:
    """Wait for the lock; return False on a file system without locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, kind)
        return True
    return False


def give_name(part: Path, folder: Path, content: str) -> bool:
    """Move the filled folder to its place; return False if another process was faster.

    A complete folder is never removed: without locks, another node may have made it, and may read it now.
    """
    try:
        part.rename(folder)
    except OSError:
        if has_content(folder, content):
            return False
        remove(folder)
        part.rename(folder)
    return True


def has_content(folder: Path, content: str) -> bool:
    """Return whether a folder is complete and has this content, according to its mark.

    Raises:
        UntrustedError: if another user could have written the folder or its mark.
    """
    try:
        permissions.check_own_folder(folder)
        with open(permissions.open_file(folder / MARK, os.O_RDONLY), "rb") as mark:
            return mark.read(len(content) + 1) == content.encode()
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UntrustedError(str(folder), "it is not a folder") from None
        return False


def use(folder: Path, run_dir: str, copy: Path | None) -> bool:
    """Record that a run uses a folder, and make or update its copy of it; return whether the folder is there.

    Raises:
        StoreError: if it cannot be copied.
        OSError: if the record or the copy cannot be written, or the folder is not trusted.
    """
    with locked(folder, fcntl.LOCK_SH) as users:
        if not is_complete(folder):
            return False
        users.write(f"{run_dir}\n".encode())
        if copy and not copy.is_dir():
            make_copy(folder, copy)
        elif copy and (earlier := origin_of(copy)) and earlier != folder:
            update_copy(folder, copy, earlier)
        if copy:
            atomic_write.write(copy.with_name(files.SENT_PROJECT), str(folder))
    return True


def origin_of(copy: Path) -> Path | None:
    """Return the folder from which a copy was made; None if that was not recorded."""
    with contextlib.suppress(FileNotFoundError):
        return Path(copy.with_name(files.SENT_PROJECT).read_text())
    return None


def update_copy(folder: Path, copy: Path, earlier_folder: Path) -> None:
    """Replace the files of a copy that differ between the folder from which it was made and another one.

    Files that are equal in both folders stay as the run has left them, as do its own files. If the earlier folder is
    gone, all files of the new one are replaced.

    Raises:
        OSError: if a file cannot be read or written.
    """
    earlier = entries_of(earlier_folder) if is_complete(earlier_folder) else {}
    entries = entries_of(folder)
    for name, entry in entries.items():
        if earlier.get(name) != entry:
            replace_file(folder / name, copy / name)
    for name in earlier.keys() - entries.keys():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if describe(copy, name) == earlier[name]:
                (copy / name).unlink()


def entries_of(folder: Path) -> dict[str, FileEntry]:
    """Return the files of a folder by their paths below it."""
    return {name: describe(folder, name) for name in all_files(folder)}


def replace_file(source: Path, path: Path) -> None:
    """Replace a file or a link whole, and make it writable.

    It gets a new time. All files are sent with one time, by which Python would take the bytecode of the earlier file,
    if it has the same size, for that of the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    shutil.copy(source, part, follow_symlinks=False)
    if not part.is_symlink():
        part.chmod(part.stat().st_mode | stat.S_IWUSR)
    part.replace(path)


def is_complete(folder: Path) -> bool:
    """Return whether a folder of the store is there; raise UntrustedError if another user could have written it."""
    return has_content(folder, folder.name)


def make_store(store: Path) -> None:
    """Create the store unless it is there; raise UntrustedError if another user can write to it."""
    with contextlib.suppress(FileExistsError):
        store.mkdir(mode=0o700, parents=True)
    permissions.check_own_folder(store)


@contextlib.contextmanager
def locked(folder: Path, kind: int) -> Iterator[BinaryIO]:
    """Hold the lock of a folder of the store; yield its file, which lists the runs that have used the folder."""
    make_store(folder.parent)
    with permissions.open_private(folder.with_name(f".{folder.name}.lock")) as lock:
        lock_if_possible(lock, kind)
        yield lock


def receive(folder: Path) -> None:
    """Read a folder from stdin, check it against its name, and give it its name.

    The archive is read to its end even if another node that shares the store is faster.

    Raises:
        StoreError: if the archive cannot be unpacked or has other content.
        OSError: if the folder cannot be written, or is not trusted.
    """
    make_store(folder.parent)
    with new_part(folder) as part:
        unpack = ("tar", "-xzf", "-", "--no-same-owner", "--no-same-permissions", "-C", str(part))
        run(folder, *unpack, blocks=stdin_blocks())
        if hash_of(part) != folder.name:
            raise StoreError(f"{folder}: {CHANGED}")
        atomic_write.write(part / MARK, folder.name)
        run(folder, "chmod", "-R", "a-w", "--", str(part))
        with atomic_write.opened(part, os.O_RDONLY) as descriptor:  # the name is right even after a power failure
            ctypes.CDLL(None).syncfs(descriptor)
        with locked(folder, fcntl.LOCK_EX):
            if not is_complete(folder):
                give_name(part, folder, folder.name)


def make_copy(folder: Path, copy: Path) -> None:
    """Make a writable copy of a folder unless there is one, which another node that shares the folder has made.

    Raises:
        StoreError: if it cannot be written.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write.folder(copy) as part:
        run(copy, "cp", "-dR", "--preserve=mode", "--reflink=auto", "--", f"{folder}/.", str(part))
        run(copy, "chmod", "-R", "u+w", "--", str(part))
        (part / MARK).unlink()


def remove_unused(store: Path, is_living: Callable[[str], bool], *, dry_run: bool) -> tuple[str, ...]:
    """Remove the folders that no run has used for UNUSED_SECONDS, and incomplete ones; return their paths.

    Args:
        store: the folder of all of them.
        is_living: returns whether the run of a folder of runs may not have ended; a folder that it uses stays.
        dry_run: remove nothing.

    Raises:
        UntrustedError: if another user could have written the store.
        OSError: if a folder cannot be removed.
    """
    incomplete = [part for part in store.glob(f".*{PART}*") if age(part) > INCOMPLETE_SECONDS]
    unused: list[Path] = []
    for lock in store.glob(".*.lock"):
        folder = lock.with_name(lock.name.removeprefix(".").removesuffix(".lock"))
        if age(lock) <= UNUSED_SECONDS or not folder.is_dir():
            continue
        with locked(folder, fcntl.LOCK_EX) as users:
            runs = set(os.fsdecode(users.read()).splitlines())
            if age(lock) <= UNUSED_SECONDS or any(map(is_living, runs)):
                continue
            unused.append(folder)
            if not dry_run:
                with new_part(folder) as part:
                    folder.rename(part)  # a folder is complete as long as it has its name
                users.truncate(0)
    for part in incomplete if not dry_run else ():
        remove(part)
    return tuple(map(str, (*incomplete, *unused)))


def age(path: Path) -> float:
    """Return the seconds since a file was written, or since an entry of a folder changed; 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def stdin_blocks() -> Iterator[bytes]:
    return iter(lambda: sys.stdin.buffer.read(CHUNK), b"")


def run(folder: Path, *command: str, blocks: Iterable[bytes] = ()) -> None:
    """Run a program that writes a folder.

    Args:
        folder: the folder.
        command: the program and its arguments.
        blocks: its input, which is consumed to the end even if the program fails.

    Raises:
        StoreError: if it fails, with what is wrong with the disk, or else with the program's first line.
    """
    try:
        receive_files.feed(("env", "LC_ALL=C", *command), blocks)
    except ValueError as failure:
        if error := disk.write_error(folder.parent):  # tar reports a full disk only as a short write
            raise StoreError(disk.describe_error(folder, error)) from None
        raise StoreError(f"{folder}: {command[0]}: {str(failure).splitlines()[0]}") from None
