"""Keep folders that a controller sends: read-only, complete, and named by the hash of their content.

  node.py store use FOLDER RUN_DIR ...      exit with ABSENT if the folder is not there
  node.py store receive FOLDER RUN_DIR ...  read the folder from stdin, as a gzipped tar archive
  node.py store send FOLDER RUN_DIR         print this archive

The first two record that the run uses the folder, and make a copy of it for the run (--copy COPY). A copy that exists
stays as the run has left it, except for the files that differ between FOLDER and the folder from which it was made;
with --keep it does not need the folder. Nodes that share the store may do this at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from orch_node import atomic_write, content_store, disk, permissions, program, reach
from orch_node.content_store import MARK, describe, has_content
from orch_node.login_shell import START_MARKER, program_errors
from orch_node.protocol import files
from orch_node.protocol.folders import FileEntry

MAX_NOISE = 1 << 20  # bytes that a login shell may print
ABSENT = 3  # the exit code of `use`
PART = ".part-"  # in the name of an incomplete folder
UNUSED_SECONDS = 30 * 24 * 3600.0
INCOMPLETE_SECONDS = 24 * 3600.0  # longer than any transfer takes
WRITE_BITS = 0o222
SEND_CODE = "The project has changed; `orch resume --code` sends it"
CHANGED = "its files have changed since the run was planned. Start it again"


class StoreError(Exception):
    """A folder cannot be received or copied. The text says why."""


def main(argv: list[str]) -> int:
    """Run the command of the arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="node.py store")
    parser.add_argument("command", choices=("use", "receive", "send"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("run_dir")
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(argv)
    os.umask(0o077)
    folder = options.folder
    try:
        if options.command == "send":
            return send(folder)
        if options.command == "receive":
            receive(folder)
        if is_complete(folder):
            use(folder, options.run_dir, options.copy)
        elif not (options.keep and options.copy.is_dir()):
            return ABSENT
    except OSError as error:
        print(disk.describe_error(options.folder, error), file=sys.stderr)
        return 1
    except StoreError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


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
    try:
        return Path(copy.with_name(files.SENT_PROJECT).read_text())
    except FileNotFoundError:
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
    return {name: describe(folder, name) for name in content_store.all_files(folder)}


def replace_file(source: Path, path: Path) -> None:
    """Replace a file or a link whole, and make it writable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    shutil.copy2(source, part, follow_symlinks=False)
    if not part.is_symlink():
        part.chmod(part.stat().st_mode | stat.S_IWUSR)
    part.replace(path)


def is_complete(folder: Path) -> bool:
    """Return whether a folder of the store is there; raise UntrustedError if another user could have written it."""
    return has_content(folder, folder.name, permissions.check_own_folder)


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
        content_store.lock_if_possible(lock, kind)
        yield lock


def receive(folder: Path) -> None:
    """Read a folder from stdin, check it against its name, and give it its name.

    The archive is read to its end even if another node that shares the store is faster.

    Raises:
        StoreError: if the archive cannot be unpacked or has other content.
        OSError: if the folder cannot be written, or is not trusted.
    """
    make_store(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}{PART}", dir=folder.parent))
    try:
        unpack = ("tar", "-xzf", "-", "--no-same-owner", "--no-same-permissions", "-C", str(part))
        run(folder, *unpack, blocks=iter(lambda: sys.stdin.buffer.read(content_store.CHUNK), b""))
        if content_store.hash_of(part) != folder.name:
            raise StoreError(f"{folder}: {CHANGED}")
        atomic_write.write(part / MARK, folder.name)
        make_read_only(part)
        content_store.sync(part)
        with locked(folder, fcntl.LOCK_EX):
            if not is_complete(folder):
                give_name(part, folder)
    finally:
        content_store.remove(part)


def give_name(part: Path, folder: Path) -> None:
    """Move a complete folder to its place, unless another node was faster on a file system without locks."""
    try:
        part.rename(folder)
    except OSError:
        if not is_complete(folder):
            raise


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
        run(copy, "cp", "-a", "--reflink=auto", "--", f"{folder}/.", str(part))
        run(copy, "chmod", "-R", "u+w", "--", str(part))
        (part / MARK).unlink()
        part.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
    unused = [part for part in store.glob(f".*{PART}*") if age(part) > INCOMPLETE_SECONDS]
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
                remove_whole(folder)
                users.truncate(0)
    for part in unused if not dry_run else ():
        content_store.remove(part)
    return tuple(map(str, unused))


def age(path: Path) -> float:
    """Return the seconds since a file was written, or since an entry of a folder changed; 0 if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove_whole(folder: Path) -> None:
    """Delete a folder so that it is complete as long as it has its name."""
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}{PART}", dir=folder.parent))
    folder.rename(part)
    content_store.remove(part)


class RemoteCommand:
    """A command of orch that runs on another node.

    Attributes:
        output: what it has printed, after end().
        error_output: the same of its standard error.
    """

    def __init__(self, node: str, arguments: Sequence[str], stdin: int) -> None:
        self.node = node
        self.output = b""
        self.error_output = ""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = reach.remote_command(node, program.command(*arguments))
        self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=self.errors)

    def write(self, block: bytes) -> None:
        """Write to its standard input unless it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(block)

    def receive(self, begin: bytes, command: Sequence[str]) -> None:
        """Close its standard input, and pass what it prints after `begin` on to a command.

        Raises:
            StoreError: if it does not print `begin`, or the command fails.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdin = None  # which end() would flush
        head = b""
        while begin not in head:
            block = self.process.stdout.read(1)
            if not block or len(head) > MAX_NOISE:
                self.end()
                raise StoreError(self.problem())
            head += block
        with subprocess.Popen(command, stdin=subprocess.PIPE) as receiver:
            assert receiver.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                shutil.copyfileobj(self.process.stdout, receiver.stdin, content_store.CHUNK)
        if receiver.returncode != 0:
            raise StoreError(f"{command[0]}: exit code {receiver.returncode}")

    def end(self) -> int:
        """Close its standard input, wait for its end, and return its exit code."""
        output, _ = self.process.communicate()
        self.output = output.rpartition(START_MARKER)[2]
        with self.errors:
            self.errors.seek(0)
            self.error_output = program_errors(self.errors.read().decode(errors="replace"))
        return self.process.returncode

    def problem(self) -> str:
        """Return what the command has printed about its failure, with the node's name."""
        lines = self.error_output.splitlines()
        return f"{self.node}: {lines[-1] if lines else f'exit code {self.process.returncode}'}"


def raise_failures(commands: Sequence[RemoteCommand]) -> None:
    if commands:
        raise StoreError("; ".join(command.problem() for command in commands))


def send(folder: Path) -> int:
    """Print an archive of a folder; return the exit code.

    Raises:
        StoreError: if this node has only the run's copy of it.
    """
    if not is_complete(folder):
        raise StoreError(f"no copy of the project as the run was started with. {SEND_CODE}")
    return subprocess.run(("tar", "-I", "gzip -1", "-c", f"--exclude=./{MARK}", "-C", str(folder), ".")).returncode


def run(folder: Path, *command: str, blocks: Iterable[bytes] = ()) -> None:
    """Run a program that writes a folder.

    Args:
        folder: the folder.
        command: the program and its arguments.
        blocks: its input, which is consumed to the end even if the program fails.

    Raises:
        StoreError: if it fails, with what is wrong with the disk, or else with the program's first line.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=environment)
        assert process.stdin is not None
        for block in blocks:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(block)
        process.communicate()
        errors.seek(0)
        reason = errors.read().decode(errors="replace").strip() or f"exit code {process.returncode}"
    if process.returncode != 0:
        if error := disk.write_error(folder.parent):  # tar reports a full disk only as a short write
            raise StoreError(disk.describe_error(folder, error))
        raise StoreError(f"{folder}: {command[0]}: {reason.splitlines()[0]}")
