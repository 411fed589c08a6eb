"""Brings a folder of a node here, file by file: hashed on both sides, resumable."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
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
LARGEST = 1 << 60  # bytes of a file
SHA256 = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 255  # bytes, on most file systems
IMPOSSIBLE_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
PART = ".part"  # a file that is not whole yet; the next time goes on where it ends


class Remote(Protocol):
    """What collecting needs of the place where the files are."""

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program there to its end. Raises ExecuteError."""

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on. Raises ExecuteError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file below the folder.

    Attributes:
        path: from the folder on.
        size: in bytes.
        sha256: in hexadecimal digits.
        problem: why it cannot be fetched, or ''.
    """

    path: str
    size: int
    sha256: str
    problem: str = ""


@dataclass(slots=True, kw_only=True)
class FetchListener:
    """Where progress goes: what is to come, and each chunk of it."""

    total: Callable[[int, int], None] = lambda files, size: None
    file: Callable[[str], None] = lambda path: None
    advance: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The files of a folder that have been fetched.

    Attributes:
        folder: where the files are.
        files: the files that are complete there.
        brought: the paths of those that had to be copied.
        left_out: the files that cannot be fetched, each with its problem.
    """

    folder: Path
    files: tuple[Entry, ...]
    brought: tuple[str, ...]
    left_out: tuple[Entry, ...] = ()


def default_target(folder: Path, node: str | None) -> Path:
    """The run's folder here. What is here already stays where it is, and is only hashed."""
    return folder.absolute() / (f"output-{node}" if node else "output")


def collect(remote: Remote, folder: str, target: Path, *, only: tuple[str, ...], listener: FetchListener) -> Collected:
    """Bring the files of `folder` that match one of `only` (or all). Raises ExecuteError.

    A file that is here with the right hash is left alone. `only`: shell patterns for a path, or
    for the folder that it begins with. The node may say and send what it likes: nothing is written
    but plain files below `target`, none of them longer than announced.
    """
    here = ConfinedFolder(target)
    listed = [entry for entry in entries_of(remote, folder) if wanted(entry.path, only)]
    entries = [entry for entry in listed if not entry.problem]
    with telling(target):
        missing = [entry for entry in entries if known(here, entry.path) != entry.sha256]
    check_room(target, missing)
    listener.total(len(missing), sum(entry.size for entry in missing))
    left_out = [entry for entry in listed if entry.problem]
    for entry in missing:
        listener.file(entry.path)
        with telling(target):
            source = f"{folder}/{entry.path}"
            if problem := bring_unless_impossible(remote, source, here, entry=entry, listener=listener):
                left_out.append(replace(entry, problem=problem))
    paths = {entry.path for entry in left_out}
    return Collected(
        folder=target,
        files=tuple(entry for entry in entries if entry.path not in paths),
        brought=tuple(entry.path for entry in missing if entry.path not in paths),
        left_out=tuple(left_out),
    )


def bring_unless_impossible(
    remote: Remote, source: str, here: ConfinedFolder, *, entry: Entry, listener: FetchListener
) -> str:
    """Bring a file; return why the file system here cannot have its name, or ''."""
    try:
        bring(remote, source, here, entry=entry, listener=listener)
    except OSError as error:
        if error.errno not in IMPOSSIBLE_NAME:
            raise
        with suppress(OSError):
            here.remove(part_of(entry.path))
        return f"this file system cannot have such a name: {error.strerror}"
    return ""


def entries_of(remote: Remote, folder: str) -> tuple[Entry, ...]:
    """Raises ExecuteError for a folder that cannot be listed, and a list that cannot be."""
    text = (STANDALONE / "checksums.py").read_text(encoding="utf-8")
    answer = remote.capture(("python3", "-I", "-S", "-c", text, folder), seconds=HASH_SECONDS)
    if answer.code != 0:
        raise ExecuteError(
            f"{folder} could not be listed: {answer.err.strip()}.",
            hint="Is it still there, and may you read it? `orch runs` tells of the run.",
        )
    try:
        entries = tuple(entry_of(line) for line in answer.out.split("\n") if line)
    except ProtocolError as error:
        raise ExecuteError(f"The list of {folder} cannot be read: {error}", hint=LOGIN_SCRIPT_HINT) from None
    if len({entry.path for entry in entries}) < len(entries):
        raise ExecuteError(f"The list of {folder} names a file twice.", hint=LOGIN_SCRIPT_HINT)
    return entries


def entry_of(line: str) -> Entry:
    """Raises ProtocolError. Names that start with a dot are never listed by checksums.py."""
    entry = values.parse(Entry, line, "a line of it")
    parts = entry.path.split("/")
    if any(part in ("", "..") or part.startswith(".") or "\0" in part for part in parts):
        raise ProtocolError(f"{entry.path!r:.200} is no file of this folder.")
    if not writable(entry.path):
        return replace(entry, problem="its name is not UTF-8")
    if entry.problem:
        return replace(entry, problem=f"it cannot be read: {one_line(entry.problem)[:200]}")
    if not 0 <= entry.size <= LARGEST or not SHA256.fullmatch(entry.sha256):
        raise ProtocolError(f"{entry.path!r:.200} has a size or a hash that cannot be.")
    return entry


def writable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def wanted(path: str, only: tuple[str, ...]) -> bool:
    first = PurePosixPath(path).parts[0]
    return not only or any(fnmatchcase(path, pattern) or fnmatchcase(first, pattern) for pattern in only)


def check_room(target: Path, missing: list[Entry]) -> None:
    """Raises ExecuteError before anything is brought for which there is no place."""
    there = next(path for path in (target, *target.absolute().parents) if path.exists())
    needed, free = sum(entry.size for entry in missing), shutil.disk_usage(there).free
    if needed > free:
        raise ExecuteError(
            f"{target} has room for {free / 2**30:.1f} GiB, and {needed / 2**30:.1f} GiB are to come.",
            hint="--to names another folder, --only brings less.",
        )


@contextmanager
def telling(target: Path) -> Iterator[None]:
    """What this machine refuses, in words."""
    try:
        yield
    except OSError as error:
        raise ExecuteError(
            f"{error.filename or target} cannot be written: {error.strerror}.",
            hint="Links below the folder are not followed; --to names another one.",
        ) from None


def bring(remote: Remote, source: str, here: ConfinedFolder, *, entry: Entry, listener: FetchListener) -> None:
    """Go on with a part that is here; if the whole is wrong then, begin anew, once.

    Raises ExecuteError, OSError.
    """
    part = part_of(entry.path)
    if here.size(part) > entry.size:
        here.remove(part)
    for _ in range(2):
        append(here, part, remote, source, size=entry.size, listener=listener)
        if here.sha256(part) == entry.sha256:
            here.rename(part, PurePosixPath(entry.path).name)
            return
        here.remove(part)
    raise ExecuteError(f"{source} changes while it is read.", hint="Fetch again when the run has written it.")


def part_of(path: str) -> str:
    """Where a file is until it is whole: a name that no list has."""
    folder, slash, name = path.rpartition("/")
    if len(os.fsencode(name)) > LONGEST_NAME - len(PART) - 1:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{folder}{slash}.{name}{PART}"


def append(here: ConfinedFolder, part: str, remote: Remote, source: str, *, size: int, listener: FetchListener) -> None:
    """What is missing of `size` bytes. Who sends more is cut off. Raises ExecuteError, OSError."""
    have = here.size(part)
    listener.advance(have)
    here.add(part, b"", have)
    for chunk in remote.chunks(source, have):
        if have + len(chunk) > size:
            here.remove(part)
            raise ExecuteError(
                f"{source} has more than the {size} bytes that were announced.",
                hint="Fetch again when the run has written it.",
            )
        here.add(part, chunk, have)
        have += len(chunk)
        listener.advance(len(chunk))


def known(here: ConfinedFolder, path: str) -> str | None:
    """The hash of a file here; None if it is not there."""
    try:
        return here.sha256(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, *IMPOSSIBLE_NAME):
            return None
        raise
