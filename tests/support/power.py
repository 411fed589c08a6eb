"""Compute which files a disk may hold after a power failure, from the file operations in a trace of strace.

The content of a file may be lost until fsync() of the file, and its name until fsync() of its folder. The operations
on one file reach the disk in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = """
    openat creat write pwrite64 ftruncate rename renameat renameat2 unlink unlinkat fsync fdatasync
"""
STRACE = (
    *("strace", "-f", "-y", "-x", "-s", "4194304", "--seccomp-bpf", "-qq"),
    *("-e", "signal=none", "-e", f"trace={','.join(CALLS.split())}"),
)
LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (\S+)", re.DOTALL)
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"^-?\w+<([^>]*)>")
# What happens to data that is not durable: it is written, half of it is written, it is lost, or names are lost as well.
VARIANTS = ("written", "torn", "empty", "unnamed")


@dataclass(frozen=True)
class Operation:
    """An operation on a file or folder."""

    kind: str  # open, make (create or empty), write, rename, remove or sync
    path: str
    target: str = ""  # new path of a rename
    data: bytes = b""  # of a write


@dataclass
class Content:
    """The content of a file, and the part of it that is on the disk."""

    data: bytes = b""
    durable: bytes = b""


@dataclass
class Disk:
    """Contents of files by their names: as programs see them, and those whose names are on the disk."""

    visible: dict[str, Content] = field(default_factory=dict)
    durable: dict[str, Content] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        path = operation.path
        match operation.kind:
            case "make":
                self.visible.setdefault(path, Content()).data = b""
            case "open":
                self.visible.setdefault(path, Content())
            case "write" if path in self.visible:
                self.visible[path].data += operation.data
            case "rename" if path in self.visible:
                self.visible[operation.target] = self.visible.pop(path)
            case "remove":
                self.visible.pop(path, None)
            case "sync" if path in self.visible:
                self.visible[path].durable = self.visible[path].data
            case "sync":
                self.sync_folder(path)

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        for name in [name for name in self.durable if parent(name) == folder]:
            del self.durable[name]
        self.durable.update({name: content for name, content in self.visible.items() if parent(name) == folder})

    def after_power_failure(self, variant: str) -> dict[str, bytes]:
        """Return the data of files by their names after a power failure."""
        if variant == "unnamed":
            return {name: content.durable for name, content in self.durable.items()}
        return {name: surviving_data(content, variant) for name, content in self.visible.items()}


def surviving_data(content: Content, variant: str) -> bytes:
    """Return what the disk holds of a file after a power failure."""
    if variant == "written" or content.data == content.durable:
        return content.data
    if variant == "empty":
        return content.durable if content.data.startswith(content.durable) else b""
    return content.data[: (len(content.durable) + len(content.data)) // 2]


def parent(name: str) -> str:
    return name.rpartition("/")[0]


def read_operations(trace: Path, folder: Path) -> list[Operation]:
    """Return the successful operations of a trace on a folder and the files in it, in their order."""
    operations = [operation for line in join_interrupted_lines(trace) for operation in parse_line(line, folder)]
    return [
        operation
        for operation in operations
        if operation.path.startswith(f"{folder}/") or operation.path == str(folder)
    ]


def join_interrupted_lines(trace: Path) -> Iterator[str]:
    """Yield the lines of a trace, with both halves of a call that a line of another process has interrupted."""
    first_halves: dict[str, str] = {}
    for line in trace.read_text(encoding="latin-1").splitlines():
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            first_halves[pid] = line.removesuffix("<unfinished ...>").rstrip()
        elif " resumed>" in line:
            yield first_halves.pop(pid, "") + line.partition(" resumed>")[2]
        else:
            yield line


def parse_line(line: str, folder: Path) -> Iterator[Operation]:
    """Yield the operation of a line, if it succeeded and changes a file."""
    match = LINE.match(line)
    if match is None or match[4].startswith("-1"):
        return
    call, arguments, result = match[2], match[3], match[4]
    strings = [unescape(text) for text in TEXT.findall(arguments)]
    descriptor = DESCRIPTOR.match(arguments)
    descriptor_path = descriptor[1] if descriptor else ""
    if call in ("openat", "creat"):
        opened_path = re.search(r"<([^>]*)>", result)
        truncates = "O_TRUNC" in arguments or call == "creat"
        if opened_path and (truncates or "O_CREAT" in arguments):
            yield Operation("make" if truncates else "open", opened_path[1])
    elif call in ("write", "pwrite64"):
        size = int(result)
        yield Operation("write", descriptor_path, data=strings[0][:size])
    elif call in ("fsync", "fdatasync"):
        yield Operation("sync", descriptor_path)
    elif call == "ftruncate":
        yield Operation("make", descriptor_path)
    else:
        paths = [absolute(string, descriptor_path, folder) for string in strings]
        if call.startswith("rename"):
            yield Operation("rename", paths[0], target=paths[1])
        else:
            yield Operation("remove", paths[0])


def unescape(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def absolute(path: bytes, base: str, folder: Path) -> str:
    """Return an absolute path; a relative one begins at `base`, or at the folder if that is empty."""
    name = path.decode(errors="surrogateescape")
    return name if name.startswith("/") else f"{base or folder}/{name}"


def states_after_power_cut(operations: list[Operation]) -> Iterator[dict[str, bytes]]:
    """Yield each different state of the files after a power failure between two operations or after the last one."""
    disk, hashes = Disk(), set()
    for operation in operations:
        disk.apply(operation)
        for variant in VARIANTS:
            state = disk.after_power_failure(variant)
            key = hash(tuple(sorted(state.items())))
            if key not in hashes:
                hashes.add(key)
                yield state
