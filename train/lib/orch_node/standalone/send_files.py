"""List a folder, then send the files that a controller selects: the node's part of `orch fetch`.

The controller sends this program and its requests to standard input, so that it needs nothing but Python here:

1. a line with the folders to try; the first that exists is used.
   Output: MARKER, a line with the folder (or none of them), a line for each entry, and an empty line.
2. a line for each requested file: its path, and the size and SHA-256 of what the controller has of it; an empty line.
   Output for each file: a line with the offset from which it is sent, blocks (the size in 4 bytes, then the content)
   up to one of size 0, and a line with the SHA-256 of the whole file, or the problem.

A file is read once: its hash is computed while it is sent. It is sent up to the size that was listed, because the run
may append to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator
from io import FileIO
from typing import BinaryIO

MARKER = b"orch-send-files:"  # login scripts may print something before it
BLOCK = 1 << 18
FILE, LINK, FOLDER, SPECIAL = "file", "link", "folder", "special"


def main() -> None:
    """Serve the two requests of a controller."""
    requests, output = sys.stdin.buffer, sys.stdout.buffer
    folder = next(filter(os.path.isdir, json.loads(requests.readline())), None)
    output.write(MARKER + b"\n")
    send_line(folder)
    if folder is not None:
        folder = os.path.abspath(folder)
        entries = {}
        for entry in list_entries(folder):
            entries[entry["path"]] = entry
            send_line(entry)
        output.write(b"\n")
        output.flush()
        for path, size, digest in read_requests(requests):
            send_file(os.path.join(folder, path), entries[path], size, digest)
    output.flush()


def read_requests(requests: BinaryIO) -> list[tuple[str, int, str]]:
    """Return the requested files; none if the controller has gone before the empty line."""
    lines: list[bytes] = []
    for line in requests:
        if line == b"\n":
            return [(path, size, digest) for path, size, digest in map(json.loads, lines)]
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
        return {"kind": FILE, "size": status.st_size, "executable": executable, "stamp": stamp_of(status)}
    if stat.S_ISLNK(status.st_mode):
        return {"kind": LINK, "target": relative_target(path, folder)}
    kinds = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
    name = next((name for check, name in kinds if check(status.st_mode)), "device")
    return {"kind": SPECIAL, "problem": f"it is a {name}"}


def stamp_of(status: os.stat_result) -> str:
    """Return a text that differs between files of different nodes, and changes when a file is written."""
    return f"{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def relative_target(path: str, folder: str) -> str:
    """Return the target of a link, relative to the link's folder if it is an absolute path inside of the folder."""
    target = os.readlink(os.path.join(folder, path))
    for root in (folder, os.path.realpath(folder)):
        if os.path.isabs(target) and os.path.commonpath([os.path.normpath(target), root]) == root:
            return os.path.relpath(target, os.path.join(root, os.path.dirname(path)))
    return target


def send_file(path: str, entry: dict[str, object], known_size: int, known_sha256: str) -> None:
    """Send a file from where the controller's content ends, or from its beginning if that content is another."""
    output, size, has_begun = sys.stdout.buffer, int(str(entry["size"])), False
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
            digest = hashlib.sha256()
            offset = add_blocks(file, min(known_size, size), digest, None) if known_sha256 else 0
            if known_sha256 and digest.hexdigest() != known_sha256:
                offset, digest = file.seek(0), hashlib.sha256()
            send_line(offset)
            has_begun = True
            offset += add_blocks(file, size - offset, digest, output)
            status = os.fstat(file.fileno())
        is_longer = status.st_size > size  # something was appended
        is_changed = offset < size or (not is_longer and stamp_of(status) != entry["stamp"])
        end = {"problem": "it changed while it was read"} if is_changed else {"sha256": digest.hexdigest()}
    except OSError as error:
        if not has_begun:
            send_line(0)
        end = {"problem": str(error.strerror)}
    output.write(bytes(4))
    send_line(end)


def add_blocks(file: FileIO, size: int, digest: hashlib._Hash, output: BinaryIO | None) -> int:
    """Add the next bytes of a file, at most `size`, to a hash, and send them to an output; return their number."""
    total = 0
    while block := file.read(min(BLOCK, size - total)):
        digest.update(block)
        if output:
            output.write(struct.pack(">I", len(block)))
            output.write(block)
        total += len(block)
    return total


if __name__ == "__main__":
    main()
