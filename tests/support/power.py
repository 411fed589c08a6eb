"""What a disk holds when the power fails: the file operations of a command, as strace saw them, and
the folders that each beginning of them may leave.

Until fsync() a file's bytes may be lost, and until its folder's fsync() so may its name; the
operations of one file reach the disk in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat",
    "creat",
    "write",
    "pwrite64",
    "ftruncate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "fsync",
    "fdatasync",
)
STRACE = (
    "strace",
    "-f",
    "-y",
    "-x",
    "-s",
    "4194304",
    "--seccomp-bpf",
    "-qq",
    "-e",
    "signal=none",
    "-e",
    f"trace={','.join(CALLS)}",
)
LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (\S+)", re.DOTALL)
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"^-?\w+<([^>]*)>")
VARIANTS = ("kept", "torn", "empty", "forgotten")


@dataclass(frozen=True)
class Operation:
    """`kind`: open, make (and empty), write, rename, remove, sync or sync folder."""

    kind: str
    path: str
    to: str = ""
    data: bytes = b""


@dataclass
class Content:
    data: bytes = b""
    durable: bytes = b""


@dataclass
class Disk:
    """Names -> contents, as programs see them, and as they are known to be on the disk."""

    seen: dict[str, Content] = field(default_factory=dict)
    named: dict[str, Content] = field(default_factory=dict)

    def apply(self, one: Operation) -> None:
        match one.kind:
            case "make":
                self.seen.setdefault(one.path, Content()).data = b""
            case "open":
                self.seen.setdefault(one.path, Content())
            case "write" if one.path in self.seen:
                self.seen[one.path].data += one.data
            case "rename" if one.path in self.seen:
                self.seen[one.to] = self.seen.pop(one.path)
            case "remove":
                self.seen.pop(one.path, None)
            case "sync" if one.path in self.seen:
                self.seen[one.path].durable = self.seen[one.path].data
            case "sync":
                self.sync_folder(one.path)

    def sync_folder(self, folder: str) -> None:
        for names in (self.named, self.seen):
            here = {name: one for name, one in names.items() if parent(name) == folder}
            if names is self.named:
                for name in here:
                    del self.named[name]
            else:
                self.named.update(here)

    def after_the_cut(self, variant: str) -> dict[str, bytes]:
        if variant == "forgotten":
            return {name: one.durable for name, one in self.named.items()}
        return {name: surviving_data(one, variant) for name, one in self.seen.items()}


def surviving_data(one: Content, variant: str) -> bytes:
    if variant == "kept" or one.data == one.durable:
        return one.data
    if variant == "empty":
        return one.durable if one.data.startswith(one.durable) else b""
    return one.data[: (len(one.durable) + len(one.data)) // 2]


def parent(name: str) -> str:
    return name.rpartition("/")[0]


def read_operations(trace: Path, folder: Path) -> list[Operation]:
    """Those on files below the folder that succeeded, in their order."""
    found = (operation for line in join_interrupted_lines(trace) for operation in parse_line(line, folder))
    return [one for one in found if one.path.startswith(f"{folder}/") or one.path == str(folder)]


def join_interrupted_lines(trace: Path) -> Iterator[str]:
    """With the two halves of calls that another process came between."""
    begun: dict[str, str] = {}
    for line in trace.read_text(encoding="latin-1").splitlines():
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>").rstrip()
        elif " resumed>" in line:
            yield begun.pop(pid, "") + line.partition(" resumed>")[2]
        else:
            yield line


def parse_line(line: str, folder: Path) -> Iterator[Operation]:
    match = LINE.match(line)
    if match is None or match[4].startswith("-1"):
        return
    call, said, result = match[2], match[3], match[4]
    texts = [unescape(text) for text in TEXT.findall(said)]
    at = DESCRIPTOR.match(said)
    here = at[1] if at else ""
    if call in ("openat", "creat"):
        opened = re.search(r"<([^>]*)>", result)
        makes = "O_TRUNC" in said or call == "creat"
        if opened and (makes or "O_CREAT" in said):
            yield Operation("make" if makes else "open", opened[1])
    elif call in ("write", "pwrite64"):
        size = int(result)
        yield Operation("write", here, data=texts[0][:size])
    elif call in ("fsync", "fdatasync"):
        yield Operation("sync", here)
    elif call == "ftruncate":
        yield Operation("make", here)
    else:
        paths = [absolute(text, here, folder) for text in texts]
        if call.startswith("rename"):
            yield Operation("rename", paths[0], to=paths[1])
        else:
            yield Operation("remove", paths[0])


def unescape(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def absolute(path: bytes, at: str, folder: Path) -> str:
    name = path.decode(errors="surrogateescape")
    return name if name.startswith("/") else f"{at or folder}/{name}"


def states_after_power_cut(done: list[Operation]) -> Iterator[dict[str, bytes]]:
    """What is there when the power fails after each of the operations, each state once."""
    disk, known = Disk(), set()
    for one in done:
        disk.apply(one)
        for variant in VARIANTS:
            state = disk.after_the_cut(variant)
            key = hash(tuple(sorted(state.items())))
            if key not in known:
                known.add(key)
                yield state
