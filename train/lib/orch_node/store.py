"""Keep folders that a controller sends: read-only, complete, and named by the hash of their content.

  node.py store use FOLDER RUN_DIR [COPY]      exit with ABSENT if the folder is not there
  node.py store receive FOLDER RUN_DIR [COPY]  read the folder from stdin, as a gzipped tar archive

Both record that the run uses the folder, and copy it for the run if COPY is given. Nodes that share the store may
do this at the same time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from orch_node import disk, filled_folder, trust, whole_files
from orch_node.filled_folder import MARK, has_content

ABSENT = 3  # the exit code of `use`
WRITE_BITS = 0o222
CHANGED = "its files have changed since the run was planned. Start it again"


class StoreError(Exception):
    """A folder cannot be received or copied. The text says why."""


def main(argv: list[str]) -> int:
    """Run the command of the arguments; return the exit code."""
    os.umask(0o077)
    command, folder, run_dir, *copies = argv
    copy = Path(copies[0]) if copies else None
    try:
        if command == "receive":
            receive(Path(folder))
        if use(Path(folder), run_dir, copy):
            return 0
    except (StoreError, OSError) as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return 1
    return ABSENT


def use(folder: Path, run_dir: str, copy: Path | None) -> bool:
    """Record that a run uses a folder, and copy it for the run; return whether the folder is there.

    Raises:
        StoreError: if it cannot be copied.
        OSError: if the record cannot be written, or the folder is not trusted.
    """
    with locked(folder, fcntl.LOCK_SH) as users:
        if not has_content(folder, folder.name):
            return False
        users.write(f"{run_dir}\n".encode())
        if copy:
            make_copy(folder, copy)
    return True


@contextmanager
def locked(folder: Path, kind: int) -> Iterator[BinaryIO]:
    """Hold the lock of a folder of the store; yield its file, which lists the runs that have used the folder."""
    trust.check_folder(folder.parent, make=True)
    with trust.open_private(folder.with_name(f".{folder.name}.lock")) as lock:
        filled_folder.lock_if_possible(lock, kind)
        yield lock


def receive(folder: Path) -> None:
    """Read a folder from stdin, check it against its name, and give it its name.

    The archive is read to its end even if another node that shares the store is faster.

    Raises:
        StoreError: if the archive cannot be unpacked or has other content.
        OSError: if the folder cannot be written, or is not trusted.
    """
    trust.check_folder(folder.parent, make=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
    try:
        run("tar", "-xzf", "-", "--no-same-owner", "--no-same-permissions", "-C", str(part), stdin=None)
        if filled_folder.hash_of(part) != folder.name:
            raise StoreError(CHANGED)
        whole_files.write(part / MARK, folder.name)
        make_read_only(part)
        filled_folder.sync(part)
        with locked(folder, fcntl.LOCK_EX):
            if not has_content(folder, folder.name):
                filled_folder.give_name(part, folder, folder.name)
    finally:
        filled_folder.remove(part)


def make_read_only(folder: Path) -> None:
    """Remove the permission to write from a folder and everything in it."""
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (*(os.path.join(parent, name) for name in names), parent):
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & ~WRITE_BITS)


def make_copy(folder: Path, copy: Path) -> None:
    """Make a writable copy of a folder unless there is one, which another node that shares the folder has made.

    Raises:
        StoreError: if it cannot be written.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
    try:
        run("cp", "-a", "--reflink=auto", "--", f"{folder}/.", str(part))
        run("chmod", "-R", "u+w", "--", str(part))
        (part / MARK).unlink()
        part.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def run(*command: str, stdin: int | None = subprocess.DEVNULL) -> None:
    """Run a program.

    Raises:
        StoreError: if it fails, with its first line, or with what is wrong with the disk.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(command, stdin=stdin, stderr=subprocess.PIPE, env=environment, errors="replace")
    if result.returncode != 0:
        reason = result.stderr.strip() or f"exit code {result.returncode}"
        raise StoreError(disk.describe_output(command[-1], reason.splitlines()[0]))
