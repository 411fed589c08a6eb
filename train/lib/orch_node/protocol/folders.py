"""The hash of a folder, by which controller and nodes know that it has the same content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

# Kinds of files, apart from plain files, whose kind is empty.
EXECUTABLE, LINK = "executable", "symlink"


class FileEntry(NamedTuple):
    """A file in a folder.

    Attributes:
        name: the path below the folder.
        kind: EXECUTABLE, LINK or ''.
        sha256: of the content, or of the target's path for a link.
    """

    name: str
    kind: str
    sha256: str


def folder_hash(files: Iterable[FileEntry]) -> str:
    """Return the SHA-256 of a folder, in hexadecimal digits."""
    digest = hashlib.sha256()
    for entry in sorted(files):
        digest.update("\0".join(entry).encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()
