"""Brings a folder of a node here, file by file: hashed on both sides, resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from orchestrator.errors import ExecuteError
from orchestrator.files import own_folder, sha256
from orchestrator.model.command import Answer
from orchestrator.paths import STANDALONE

HASH_SECONDS = 3600.0
PART = ".part"  # a file that is not whole yet; the next time goes on where it ends


class Remote(Protocol):
    """What collecting needs of the place where the files are."""

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> Answer:
        """Run a program there to its end. Raises ExecuteError."""

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on. Raises ExecuteError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file below the folder. Bytes."""

    path: str
    size: int
    sha256: str


@dataclass(slots=True, kw_only=True)
class FetchListener:
    """Where progress goes: what is to come, and each chunk of it."""

    total: Callable[[int, int], None] = lambda files, size: None
    file: Callable[[str], None] = lambda path: None
    advance: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What is here now: all files, and the paths of those that had to be brought."""

    folder: Path
    files: tuple[Entry, ...]
    brought: tuple[str, ...]


def collect(
    remote: Remote, folder: str, target: Path, *, only: tuple[str, ...], listener: FetchListener
) -> Collected:
    """Bring the files of `folder` that match one of `only` (or all). Raises ExecuteError.

    A file that is here with the right hash is left alone. `only`: shell patterns for a path, or
    for the folder that it begins with.
    """
    entries = tuple(entry for entry in entries_of(remote, folder) if wanted(entry.path, only))
    missing = [entry for entry in entries if known(target / entry.path) != entry.sha256]
    listener.total(len(missing), sum(entry.size for entry in missing))
    for entry in missing:
        listener.file(entry.path)
        bring(remote, f"{folder}/{entry.path}", target / entry.path, entry=entry, listener=listener)
    return Collected(folder=target, files=entries, brought=tuple(one.path for one in missing))


def entries_of(remote: Remote, folder: str) -> Iterator[Entry]:
    text = (STANDALONE / "checksums.py").read_text(encoding="utf-8")
    answer = remote.capture(("python3", "-I", "-S", "-c", text, folder), seconds=HASH_SECONDS)
    if answer.code != 0:
        raise ExecuteError(f"{folder} could not be listed: {answer.err.strip()}.")
    for line in answer.out.splitlines():
        entry = Entry(**json.loads(line))
        path = PurePosixPath(entry.path)
        if path.is_absolute() or ".." in path.parts:
            raise ExecuteError(f"{folder} lists a file outside of itself: {entry.path}.")
        yield entry


def wanted(path: str, only: tuple[str, ...]) -> bool:
    first = PurePosixPath(path).parts[0]
    return not only or any(
        fnmatchcase(path, pattern) or fnmatchcase(first, pattern) for pattern in only
    )


def bring(
    remote: Remote, source: str, target: Path, *, entry: Entry, listener: FetchListener
) -> None:
    """Go on with a part that is here; if the whole is wrong then, begin anew, once."""
    part = target.with_name(target.name + PART)
    try:
        own_folder(target.parent)
        part.touch(mode=0o600)
        for _ in range(2):
            append(part, remote, source, listener)
            if sha256(part) == entry.sha256:
                part.replace(target)
                return
            part.unlink()
    except OSError as error:
        raise ExecuteError(f"{target} cannot be written: {error.strerror}.") from None
    raise ExecuteError(
        f"{source} changes while it is read.", hint="Fetch again when the run has written it."
    )


def append(part: Path, remote: Remote, source: str, listener: FetchListener) -> None:
    offset = part.stat().st_size if part.exists() else 0
    listener.advance(offset)
    with part.open("ab") as file:
        for chunk in remote.chunks(source, offset):
            file.write(chunk)
            listener.advance(len(chunk))


def known(path: Path) -> str | None:
    """The hash of a file here; None if it is not there."""
    try:
        return sha256(path)
    except FileNotFoundError:
        return None
