"""List the regular files of a folder with their sizes and SHA-256: `checksums.py FOLDER`.

The output is one JSON object per line. Names that start with a dot are skipped, because they are incomplete (a
checkpoint that is being written), and so are files that disappear meanwhile. An unreadable file has a `problem`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator

CHUNK = 1 << 20


def entries(folder: str) -> Iterator[dict[str, object]]:
    """Yield the entry of each file, in a fixed order."""
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = os.path.join(base, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield {"path": os.path.relpath(path, folder), **checksum(path)}
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = {"size": 0, "sha256": "", "problem": str(error.strerror)}
                yield {"path": os.path.relpath(path, folder), **problem}


def checksum(path: str) -> dict[str, object]:
    """Return the size and the SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


if __name__ == "__main__":
    if not os.path.isdir(sys.argv[1]):
        sys.exit(f"there is no folder {sys.argv[1]}")
    for entry in entries(sys.argv[1]):
        print(json.dumps(entry), flush=True)
