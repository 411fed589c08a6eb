"""List a folder, then send the files that a controller selects: the node's part of `orch fetch`.

The controller sends this program and its requests to standard input, so that it needs nothing but Python here:

1. a line with the folders to try, the run's copy of the project, and the file with the hashes of what this node has
   received for it; the first folder that exists is used.
   Output: MARKER, a line with the folder (or none of them), a line for each entry, and an empty line.
2. a line for each file: its path and the size that was listed, since the run may append to it; an empty line.
   Output for each file: a line with the SHA-256 of these bytes, or the problem.
3. a line for each file that the controller lacks: its path, the offset from which it is sent, and its size; an empty
   line. Output: the bytes of all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from io import FileIO
from typing import Any, BinaryIO

MARKER = b"orch-send-files:"  # login scripts may print something before it
BLOCK = 1 << 18
FILE, LINK, FOLDER, SPECIAL = "file", "link", "folder", "special"


def main() -> None:
    """Serve the requests of a controller."""
    requests, output = sys.stdin.buffer, sys.stdout.buffer
    folders, copy, received = json.loads(requests.readline())
    folder = next(filter(os.path.isdir, folders), None)
    output.write(MARKER + b"\n")
    send_line(folder)
    if folder is not None:
        folder = os.path.abspath(folder)
        hashes: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError), open(received, encoding="utf-8") as file:
            hashes = json.load(file)
        for entry in list_entries(folder):
            send_line({**entry, "received": hashes.get(os.path.relpath(f"{folder}/{entry['path']}", copy), "")})
        output.write(b"\n")
        output.flush()
        for path, size in read_requests(requests):
            send_line(hash_of(os.path.join(folder, path), size))
        output.flush()
        for path, offset, size in read_requests(requests):
            send_file(os.path.join(folder, path), offset, size)
    output.flush()


def read_requests(requests: BinaryIO) -> list[list[Any]]:
    """Return the lines up to an empty one; none if the controller has gone before it."""
    lines: list[bytes] = []
    for line in requests:
        if line == b"\n":
            return [json.loads(line) for line in lines]
        lines.append(line)
    return []


def send_line(value: object) -> None:
    """Write a value as a line of JSON."""
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")


def list_entries(folder: str) -> Iterator[dict[str, object]]:
    """Yield the entries of everything below a folder in a fixed order, and of folders only those without entries."""
    errors: list[OSError] = []
    for base, folders, names in os.walk(folder, onerror=errors.append):
        folders.sort()
        if not folders and not names and base != folder:
            yield {"path": os.path.relpath(base, folder), "kind": FOLDER}
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in sorted((*links, *names)):
            path = os.path.relpath(os.path.join(base, name), folder)
            try:
                yield {"path": path, **describe(path, folder)}
            except FileNotFoundError:
                continue
            except OSError as error:
                yield {"path": path, "kind": SPECIAL, "problem": str(error.strerror)}
    for unreadable in errors:
        path = os.path.relpath(str(unreadable.filename), folder)
        yield {"path": path, "kind": SPECIAL, "problem": str(unreadable.strerror)}


def describe(path: str, folder: str) -> dict[str, object]:
    """Return what a file is; targets of links inside of the folder are relative."""
    status = os.lstat(os.path.join(folder, path))
    if stat.S_ISREG(status.st_mode):
        executable = bool(status.st_mode & stat.S_IXUSR)
        # Differs between files of different nodes, and changes when a file is written.
        stamp = f"{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        return {"kind": FILE, "size": status.st_size, "executable": executable, "stamp": stamp}
    if stat.S_ISLNK(status.st_mode):
        return {"kind": LINK, "target": relative_target(path, folder)}
    kinds = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
    name = next((name for check, name in kinds if check(status.st_mode)), "device")
    return {"kind": SPECIAL, "problem": f"it is a {name}"}


def relative_target(path: str, folder: str) -> str:
    """Return the target of a link, relative to the link's folder if it is an absolute path inside of the folder."""
    target = os.readlink(os.path.join(folder, path))
    for root in (folder, os.path.realpath(folder)):
        if os.path.isabs(target) and os.path.commonpath([os.path.normpath(target), root]) == root:
            return os.path.relpath(target, os.path.join(root, os.path.dirname(path)))
    return target


def hash_of(path: str, size: int) -> dict[str, object]:
    """Return the SHA-256 of the first bytes of a file, or the problem."""
    digest, remaining = hashlib.sha256(), size
    try:
        with open_file(path) as file:
            while block := file.read(min(BLOCK, remaining)):
                digest.update(block)
                remaining -= len(block)
    except OSError as error:
        return {"problem": str(error.strerror)}
    return {"problem": "it changed while it was read"} if remaining else {"sha256": digest.hexdigest()}


def send_file(path: str, offset: int, size: int) -> None:
    """Send a file from an offset on, filled with zeros if it has become shorter or cannot be read any more."""
    remaining = size - offset
    with contextlib.suppress(OSError), open_file(path) as file:
        file.seek(offset)
        while block := file.read(min(BLOCK, remaining)):
            sys.stdout.buffer.write(block)
            remaining -= len(block)
    while remaining:
        remaining -= sys.stdout.buffer.write(bytes(min(BLOCK, remaining)))


def open_file(path: str) -> FileIO:
    """Open a file for reading unless it is a link."""
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)


if __name__ == "__main__":
    main()
