"""Lists the regular files below a folder, each with its size and SHA-256: `hashes.py FOLDER`.

One JSON object a line. What starts with a dot is half-written (a checkpoint that is being staged)
and left out, and so is what vanishes meanwhile. A file that cannot be read has a `problem`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator

CHUNK = 1 << 20


def listing(folder: str) -> Iterator[dict[str, object]]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = os.path.join(here, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield {"path": os.path.relpath(path, folder), **hashed(path)}
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = {"size": 0, "sha256": "", "problem": str(error.strerror)}
                yield {"path": os.path.relpath(path, folder), **problem}


def hashed(path: str) -> dict[str, object]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


if __name__ == "__main__":
    if not os.path.isdir(sys.argv[1]):
        sys.exit(f"there is no folder {sys.argv[1]}")
    for entry in listing(sys.argv[1]):
        print(json.dumps(entry), flush=True)
