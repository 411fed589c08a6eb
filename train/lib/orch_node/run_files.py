"""Keep the files of a run the same on nodes that share no folder: node0 sends the files that it has written.

  node.py run-files list RUN_DIR TOKEN       print what the run has written in its copy of the project on this node, or
                                             that the folder is shared with the node that has this token
  node.py run-files receive RUN_DIR SUFFIX   read node0's list, then an archive of the files that differ, from stdin
  node.py run-files send RUN_DIR -           read paths from stdin, and print an archive

Contents that this node wrote to the same paths are kept: the suffix is added to the names of their files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from orch_node import atomic_write, content_store, disk
from orch_node.protocol import files, values
from orch_node.protocol.values import ProtocolError

BYTECODE = "__pycache__"
STAGING = ".received-"


@dataclass(frozen=True)
class Content:
    """The content of a file: its kind, as `FileEntry` has it, its hash and its size in bytes."""

    kind: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Written:
    """The changes that a run has made to its copy of the project on a node.

    Attributes:
        files: new and changed files, by path.
        deleted: files of the project that the run has deleted.
        received: those of `files` that are as another node has sent them earlier.
        shared: whether the folder is another node's; then the lists are empty.
        archived: those of `files` in the archive that follows, if node0 sends one.
    """

    files: dict[str, Content] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    shared: bool = False
    archived: tuple[str, ...] = ()


@dataclass(frozen=True)
class Received:
    """The response of a node that has received files: the new names of files that it had written differently."""

    renamed: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    """Run the command of the arguments; return the exit code."""
    command, run_dir, argument = argv
    os.umask(0o077)
    try:
        if command == "list":
            is_shared = token_of(Path(run_dir)) == argument
            result: Written | Received = Written(shared=True) if is_shared else written_files(Path(run_dir))
        elif command == "send":
            names = sys.stdin.buffer.read()  # whole, because the sender writes all of them before it reads
            return subprocess.run(pack_command(Path(run_dir)), input=names).returncode
        else:
            result = receive(Path(run_dir), argument)
    except OSError as error:
        sys.exit(disk.describe_error(run_dir, error))
    except (content_store.StoreError, ProtocolError) as error:
        sys.exit(str(error))
    print(values.render(result))
    return 0


def token_of(run_dir: Path) -> str:
    """Return the hash of the supervisor's file, which only nodes that share its folder see; '' if there is none."""
    return values.load(lambda content: hashlib.sha256(content).hexdigest(), run_dir / files.SUPERVISOR) or ""


def written_files(run_dir: Path) -> Written:
    """Return what the run has written on this node.

    If the project as it was sent is no longer in the store, all files count as written.
    """
    copy, sent = run_dir / files.PROJECT, sent_project(run_dir)
    if not copy.is_dir():
        return Written()
    changed = {}
    for path in sorted(content_store.all_files(copy)):
        is_regular = (copy / path).is_symlink() or (copy / path).is_file()
        if is_regular and BYTECODE not in path.split("/") and not is_as_sent(copy, sent, path):
            changed[path] = content_of(copy / path)
    names = content_store.all_files(sent) if sent else ()
    hashes = received_hashes(run_dir)
    return Written(
        files=changed,
        deleted=tuple(sorted(name for name in names if not os.path.lexists(copy / name))),
        received=tuple(path for path, content in changed.items() if hashes.get(path) == content.sha256),
    )


def received_hashes(run_dir: Path) -> dict[str, str]:
    """Return the hashes of the files that other nodes have sent to this node, by path."""
    return values.load(json.loads, run_dir / files.RECEIVED) or {}


def record_received(run_dir: Path, hashes: dict[str, str]) -> None:
    """Record the hashes of the files that this node has received, by path."""
    atomic_write.write(run_dir / files.RECEIVED, json.dumps(hashes))


def pack_command(run_dir: Path) -> tuple[str, ...]:
    """Return the command that writes an archive of files of the run's copy, whose paths are in its standard input."""
    options = ("--format=posix", "--hard-dereference", "--no-recursion", "--null", "--verbatim-files-from")
    return ("tar", "-c", *options, "-C", str(run_dir / files.PROJECT), "-T", "-")


def sent_project(run_dir: Path) -> Path | None:
    """Return the folder of the project as it was sent; None if it no longer exists."""
    folder = content_store.origin_of(run_dir / files.PROJECT)
    return folder if folder and folder.is_dir() else None


def content_of(path: Path) -> Content:
    """Return the content of a file."""
    entry = content_store.describe(path.parent, path.name)
    return Content(entry.kind, entry.sha256, path.lstat().st_size)


def is_as_sent(copy: Path, sent: Path | None, path: str) -> bool:
    """Return whether a file of the copy has the content that was sent."""
    if sent is None or not os.path.lexists(sent / path):
        return False
    has_size = (copy / path).lstat().st_size == (sent / path).lstat().st_size
    return has_size and content_of(copy / path) == content_of(sent / path)


@contextlib.contextmanager
def unpacked(run_dir: Path, blocks: Iterable[bytes], contents: Mapping[str, Content], sender: str) -> Iterator[Path]:
    """Yield a temporary folder with the files of an archive.

    Raises:
        StoreError: if the archive does not have the announced contents.
    """
    with tempfile.TemporaryDirectory(prefix=STAGING, dir=run_dir) as name:
        unpack = ("tar", "-xf", "-", "--no-same-owner", "--no-same-permissions", "-C", name)
        content_store.run(run_dir, *unpack, blocks=blocks)
        for path, content in contents.items():
            if not os.path.lexists(f"{name}/{path}") or content_of(Path(name, path)) != content:
                raise content_store.StoreError(f"{path} did not arrive as {sender} has it")
        yield Path(name)


def receive(run_dir: Path, suffix: str) -> Received:
    """Read node0's list and the files that differ here, and put them into the copy of the project.

    Raises:
        StoreError: if the archive does not have the announced content.
        OSError: if the copy cannot be written.
    """
    written = values.parse(Written, sys.stdin.buffer.readline(), "the list")
    archived = {path: written.files[path] for path in written.archived}
    with unpacked(run_dir, content_store.stdin_blocks(), archived, "node0") as staging:
        updates = CopyUpdate(run_dir, suffix)
        for path in written.deleted:
            updates.remove(path)
        for path in updates.received:  # what node0 no longer has, or has again as it was sent
            if path not in written.files and path not in written.deleted and not updates.is_own(path):
                updates.restore(path)
        for path in written.archived:
            updates.put(staging / path, path)
    record_received(run_dir, {path: entry.sha256 for path, entry in written.files.items()})
    return Received(tuple(updates.renamed))


class CopyUpdate:
    """The update of a node's copy of the project to what node0 has.

    Attributes:
        renamed: the new names of files that this node had written itself.
    """

    def __init__(self, run_dir: Path, suffix: str) -> None:
        self.copy = run_dir / files.PROJECT
        self.sent = sent_project(run_dir)
        self.suffix = suffix
        self.renamed: list[str] = []
        self.received = received_hashes(run_dir)

    def is_own(self, path: str) -> bool:
        """Return whether this node has itself written what is at a path."""
        current = self.copy / path
        if not os.path.lexists(current):
            return False
        if current.is_dir() and not current.is_symlink():
            return True
        is_received = self.received.get(path) == content_of(current).sha256
        return not is_received and not is_as_sent(self.copy, self.sent, path)

    def remove(self, path: str) -> None:
        """Remove a file, or rename it if this node wrote it."""
        if self.is_own(path):
            self.rename(path)
        elif os.path.lexists(self.copy / path):
            (self.copy / path).unlink()

    def restore(self, path: str) -> None:
        """Give a file the content that was sent, or remove it if none was sent."""
        if self.sent and os.path.lexists(self.sent / path):
            content_store.replace_file(self.sent / path, self.copy / path)
        else:
            self.remove(path)

    def put(self, source: Path, path: str) -> None:
        """Move a file to its place."""
        self.remove(path)
        for parent in reversed(Path(path).parents[:-1]):
            if os.path.lexists(self.copy / parent) and not (self.copy / parent).is_dir():
                self.remove(str(parent))
        (self.copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, self.copy / path)

    def rename(self, path: str) -> None:
        """Add the suffix to the name of a file or a folder, and a number if there is such a name."""
        names = (f"{path}.{self.suffix}{f'-{number}' if number else ''}" for number in count())
        name = next(name for name in names if not os.path.lexists(self.copy / name))
        shutil.move(self.copy / path, self.copy / name)
        self.renamed.append(name)
