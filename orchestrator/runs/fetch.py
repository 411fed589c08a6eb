"""Fetching of a folder from a node, file by file, resumable and verified by hashes on both sides."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from orch_node.protocol import values
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.files import ConfinedFolder
from orchestrator.model.command import LOGIN_SCRIPT_HINT, CommandResult
from orchestrator.model.printable import one_line
from orchestrator.paths import STANDALONE

HASH_SECONDS = 3600.0
LARGEST = 1 << 60  # maximum size of a file in bytes
SHA256 = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 255  # bytes, on most file systems
IMPOSSIBLE_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
PART = ".part"  # suffix of an incomplete file, which the next fetch continues


class Remote(Protocol):
    """The operations that fetching needs on the machine that has the files."""

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program there and wait until it ends.

        Raises:
            ExecuteError: if the program cannot be run or does not end within `seconds`.
        """

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield the content of a file from `offset` on.

        Raises:
            ExecuteError: if the file cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file below the folder.

    Attributes:
        path: the path relative to the folder.
        size: the size in bytes.
        sha256: the hash in hexadecimal digits.
        problem: the reason why it cannot be fetched, or "".
    """

    path: str
    size: int
    sha256: str
    problem: str = ""


@dataclass(slots=True, kw_only=True)
class FetchListener:
    """Callbacks for the progress of a fetch.

    Attributes:
        total: called with the number of missing files and their size in bytes.
        file: called with the path of each file before it is fetched.
        advance: called with the number of bytes of each chunk.
    """

    total: Callable[[int, int], None] = lambda files, size: None
    file: Callable[[str], None] = lambda path: None
    advance: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The fetched files of a folder.

    Attributes:
        folder: the local folder.
        files: the files that are complete in it.
        brought: the paths of the files that had to be copied.
        left_out: the files that cannot be fetched, each with its problem.
    """

    folder: Path
    files: tuple[Entry, ...]
    brought: tuple[str, ...]
    left_out: tuple[Entry, ...] = ()


def default_target(folder: Path, node: str | None) -> Path:
    """Return the local folder for the output of a run, or of one of its nodes."""
    return folder.absolute() / (f"output-{node}" if node else "output")


def collect(
    remote: Remote,
    folder: str,
    target: Path,
    *,
    patterns: tuple[str, ...],
    listener: FetchListener,
    unchanged: Mapping[str, str] | None = None,
) -> Collected:
    """Fetch the files of a folder that match one of the patterns, or all files without patterns.

    A local file with the right hash is not fetched again. The node is not trusted: only plain files
    below `target` are written, and no file becomes longer than announced.

    Args:
        remote: the machine that has the files.
        folder: the folder there.
        target: the local folder.
        patterns: shell patterns for the path of a file, or for the first folder in it.
        listener: the callbacks for the progress.
        unchanged: the hashes by path of files that are left out as long as they have them, as is bytecode.

    Raises:
        ExecuteError: if a file cannot be listed, read or written, or there is not enough space.
    """
    target_folder = ConfinedFolder(target)
    listed = [
        entry
        for entry in entries_of(remote, folder)
        if matches(entry.path, patterns) and (unchanged is None or is_output(entry, unchanged))
    ]
    entries = [entry for entry in listed if not entry.problem]
    with telling(target):
        missing = [entry for entry in entries if local_hash(target_folder, entry.path) != entry.sha256]
    check_room(target, missing)
    listener.total(len(missing), sum(entry.size for entry in missing))
    left_out = [entry for entry in listed if entry.problem]
    for entry in missing:
        listener.file(entry.path)
        with telling(target):
            source = f"{folder}/{entry.path}"
            if problem := bring_unless_impossible(remote, source, target_folder, entry=entry, listener=listener):
                left_out.append(replace(entry, problem=problem))
    paths = {entry.path for entry in left_out}
    return Collected(
        folder=target,
        files=tuple(entry for entry in entries if entry.path not in paths),
        brought=tuple(entry.path for entry in missing if entry.path not in paths),
        left_out=tuple(left_out),
    )


def is_output(entry: Entry, unchanged: Mapping[str, str]) -> bool:
    """Return whether the run has written a file that is new or changed, and not bytecode."""
    return unchanged.get(entry.path) != entry.sha256 and "__pycache__" not in PurePosixPath(entry.path).parts


def bring_unless_impossible(
    remote: Remote, source: str, target_folder: ConfinedFolder, *, entry: Entry, listener: FetchListener
) -> str:
    """Fetch a file; return why the local file system cannot store its name, or an empty string."""
    try:
        bring(remote, source, target_folder, entry=entry, listener=listener)
    except OSError as error:
        if error.errno not in IMPOSSIBLE_NAME:
            raise
        with suppress(OSError):
            target_folder.remove(part_of(entry.path))
        return f"this file system cannot have such a name: {error.strerror}"
    return ""


def entries_of(remote: Remote, folder: str) -> tuple[Entry, ...]:
    """Return the files below a remote folder.

    Raises:
        ExecuteError: if the folder cannot be listed, or its list is invalid.
    """
    text = (STANDALONE / "checksums.py").read_text(encoding="utf-8")
    result = remote.capture(("python3", "-I", "-S", "-c", text, folder), seconds=HASH_SECONDS)
    if result.code != 0:
        raise ExecuteError(
            f"{folder} could not be listed: {result.err.strip()}.",
            hint="If the script has written elsewhere: --from FOLDER. Otherwise check that you may read the folder; "
            "`orch runs` shows the state of the run.",
        )
    try:
        entries = tuple(entry_of(line) for line in result.out.split("\n") if line)
    except ProtocolError as error:
        raise ExecuteError(f"The list of {folder} cannot be read: {error}", hint=LOGIN_SCRIPT_HINT) from None
    if len({entry.path for entry in entries}) < len(entries):
        raise ExecuteError(f"The list of {folder} names a file twice.", hint=LOGIN_SCRIPT_HINT)
    return entries


def entry_of(line: str) -> Entry:
    """Parse a line of a folder's list; checksums.py never lists names that start with a dot.

    Raises:
        ProtocolError: if the line, the path, the size or the hash is invalid.
    """
    entry = values.parse(Entry, line, "a line of it")
    parts = entry.path.split("/")
    if any(part in ("", "..") or part.startswith(".") or "\0" in part for part in parts):
        raise ProtocolError(f"{entry.path!r:.200} is not a path inside this folder.")
    if not writable(entry.path):
        return replace(entry, problem="its name is not UTF-8")
    if entry.problem:
        return replace(entry, problem=f"it cannot be read: {one_line(entry.problem)[:200]}")
    if not 0 <= entry.size <= LARGEST or not SHA256.fullmatch(entry.sha256):
        raise ProtocolError(f"{entry.path!r:.200} has a size or a hash that cannot be.")
    return entry


def writable(path: str) -> bool:
    """Return whether a path can be encoded as UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path or its first folder matches one of the patterns, or there are no patterns."""
    first = PurePosixPath(path).parts[0]
    return not patterns or any(fnmatchcase(path, pattern) or fnmatchcase(first, pattern) for pattern in patterns)


def check_room(target: Path, missing: list[Entry]) -> None:
    """Raise ExecuteError if the target's disk has too little space for the missing files."""
    existing = next(path for path in (target, *target.absolute().parents) if path.exists())
    needed, free = sum(entry.size for entry in missing), shutil.disk_usage(existing).free
    if needed > free:
        raise ExecuteError(
            f"{target} has room for {free / 2**30:.1f} GiB, and {needed / 2**30:.1f} GiB are to come.",
            hint="--to names another folder, --only brings less.",
        )


@contextmanager
def telling(target: Path) -> Iterator[None]:
    """Convert errors of the local file system into an ExecuteError.

    Raises:
        ExecuteError: if a file below `target` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ExecuteError(
            f"{error.filename or target} cannot be written: {error.strerror}.",
            hint="Links below the folder are not followed; --to names another one.",
        ) from None


def bring(remote: Remote, source: str, target_folder: ConfinedFolder, *, entry: Entry, listener: FetchListener) -> None:
    """Fetch a file, continuing a local part; start again once if the result has the wrong hash.

    Raises:
        ExecuteError: if the file changes while it is read, or cannot be read.
        OSError: if the file cannot be written.
    """
    part_path = part_of(entry.path)
    if target_folder.size(part_path) > entry.size:
        target_folder.remove(part_path)
    for _ in range(2):
        append(target_folder, part_path, remote, source, size=entry.size, listener=listener)
        if target_folder.sha256(part_path) == entry.sha256:
            target_folder.rename(part_path, PurePosixPath(entry.path).name)
            return
        target_folder.remove(part_path)
    raise ExecuteError(f"{source} changes while it is read.", hint="Fetch again when the run has written it.")


def part_of(path: str) -> str:
    """Return the path of a file while it is incomplete; no list contains such a name."""
    folder, slash, name = path.rpartition("/")
    if len(os.fsencode(name)) > LONGEST_NAME - len(PART) - 1:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{folder}{slash}.{name}{PART}"


def append(
    target_folder: ConfinedFolder, part_path: str, remote: Remote, source: str, *, size: int, listener: FetchListener
) -> None:
    """Append the missing bytes to an incomplete file, which must not grow beyond `size`.

    Raises:
        ExecuteError: if the remote sends more bytes than announced, or the file cannot be read.
        OSError: if the file cannot be written.
    """
    present_bytes = target_folder.size(part_path)
    listener.advance(present_bytes)
    target_folder.add(part_path, b"", present_bytes)
    for chunk in remote.chunks(source, present_bytes):
        if present_bytes + len(chunk) > size:
            target_folder.remove(part_path)
            raise ExecuteError(
                f"{source} has more than the {size} bytes that were announced.",
                hint="Fetch again when the run has written it.",
            )
        target_folder.add(part_path, chunk, present_bytes)
        present_bytes += len(chunk)
        listener.advance(len(chunk))


def local_hash(target_folder: ConfinedFolder, path: str) -> str | None:
    """Return the hash of a local file, or None if it does not exist."""
    try:
        return target_folder.sha256(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, *IMPOSSIBLE_NAME):
            return None
        raise
