"""Talk to the program that sends the files of a folder from another machine.

`standalone/send_files.py` describes the exchange. The machine is not trusted: everything that it sends is checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from orch_node.protocol import files, values
from orch_node.standalone import send_files

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import LOGIN_SCRIPT_HINT, one_line

MAX_SIZE = 1 << 60  # bytes of a file
MAX_LINE = 1 << 16  # bytes; the path of an entry is shorter
MAX_LIST = 1 << 30  # bytes of a list: millions of files
MAX_GREETING = 1 << 20  # bytes that login scripts may print before the list
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8
SHA256 = re.compile(r"[0-9a-f]{64}")
KINDS = (send_files.FILE, send_files.LINK, send_files.FOLDER, send_files.SPECIAL)


class Program(Protocol):
    """A program that runs on the machine that has the files.

    Attributes:
        output: its standard output.
    """

    output: BinaryIO

    def send(self, data: bytes) -> None:
        """Write to its standard input; do nothing if it has ended."""

    def failure(self) -> ExecuteError:
        """Return why its output has ended too early."""


class Remote(Protocol):
    """A machine that has files to fetch."""

    def open_program(self, argv: tuple[str, ...]) -> AbstractContextManager[Program]:
        """Start a program there, which ends with the context.

        Raises:
            ExecuteError: if it cannot be started.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a link or a folder without entries, below the folder that is fetched.

    Attributes:
        path: the path relative to the folder.
        kind: FILE, LINK, FOLDER or SPECIAL.
        size: the size of a file in bytes.
        executable: whether its owner may execute it.
        stamp: a text that changes when the file is written, and differs between files of different nodes.
        target: the target of a link.
        problem: the reason why it cannot be fetched, or "".
        sha256: the hash of a file that is complete here, in hexadecimal digits.
        received: the hash with which another node has sent the file to this one, or "".
    """

    path: str
    kind: str
    size: int = 0
    executable: bool = False
    stamp: str = ""
    target: str = ""
    problem: str = ""
    sha256: str = ""
    received: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hash:
    """The hash of a file, or why it cannot be read."""

    sha256: str = ""
    problem: str = ""


class FileSender:
    """The program that sends the files of a folder.

    Attributes:
        folder: the folder, or "" before list() or if it does not exist.
        entries: what is in it, after list().
    """

    def __init__(self, program: Program, folders: Sequence[str], run_dir: str) -> None:
        """Ask for the first existing folder of several, of a run with this folder on the nodes."""
        self.program = program
        self.folders = folders
        self.folder = ""
        self.entries: tuple[Entry, ...] = ()
        names = [f"{run_dir}/{name}" if run_dir else "" for name in (files.PROJECT, files.RECEIVED)]
        request = json.dumps([list(folders), *names])
        program.send(Path(send_files.__file__).read_bytes() + request.encode() + b"\n")

    def list(self) -> None:
        """Read the list of the folder.

        Raises:
            ExecuteError: if the machine ends the connection, or its list is invalid.
        """
        with self.checking(f"The list of {' or '.join(self.folders)}"):
            limit = MAX_GREETING
            while not (line := self.line(limit)).endswith(send_files.MARKER + b"\n"):
                limit -= len(line)
            folder = values.loads(self.line(), "its first line")
            if folder is None:
                return
            if folder not in self.folders:
                raise values.ProtocolError(f"{folder!r:.200} was not requested.")
            self.folder = folder
            self.entries = tuple(map(parse_entry, self.lines()))
            if len({entry.path for entry in self.entries}) < len(self.entries):
                raise values.ProtocolError("it names a file twice.")

    def hashes(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Yield files with their hashes, or a problem."""
        self.request([entry.path, entry.size] for entry in entries)
        for entry in entries:
            with self.checking(f"The hash of {self.folder}/{entry.path}"):
                response = values.parse(Hash, self.line(), "it")
                if not response.problem and not SHA256.fullmatch(response.sha256):
                    raise values.ProtocolError("its form is invalid.")
            yield replace(entry, sha256=response.sha256, problem=one_line(response.problem)[:200])

    def request(self, requests: Iterable[Sequence[object]]) -> None:
        """Send the lines of a request."""
        self.program.send("".join(f"{json.dumps(line)}\n" for line in requests).encode() + b"\n")

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the next bytes of the files that were requested."""
        while size:
            block = self.program.output.read(min(send_files.BLOCK, size))
            if not block:
                raise self.program.failure()
            yield block
            size -= len(block)

    def lines(self) -> Iterator[bytes]:
        """Yield lines up to an empty one."""
        size = 0
        while (line := self.line()) != b"\n":
            size += len(line)
            if size > MAX_LIST:
                raise values.ProtocolError("it has no end.")
            yield line

    def line(self, limit: int = MAX_LINE) -> bytes:
        """Return the next line of the output."""
        line = self.program.output.readline(limit)
        if line.endswith(b"\n"):
            return line
        if len(line) >= limit:
            raise values.ProtocolError("a line has no end.")
        raise self.program.failure()

    @contextmanager
    def checking(self, subject: str) -> Iterator[None]:
        """Convert a ProtocolError into an ExecuteError."""
        try:
            yield
        except values.ProtocolError as error:
            raise ExecuteError(f"{subject} cannot be read: {error}", hint=LOGIN_SCRIPT_HINT) from None


def parse_entry(line: bytes) -> Entry:
    """Parse a line of a folder's list.

    Raises:
        ProtocolError: if the line or one of its values is invalid.
    """
    entry = values.parse(Entry, line, "a line of it")
    if any(part in ("", ".", "..") or "\0" in part for part in entry.path.split("/")):
        raise values.ProtocolError(f"{entry.path!r:.200} is not a path inside this folder.")
    if entry.kind not in KINDS or not 0 <= entry.size <= MAX_SIZE:
        raise values.ProtocolError(f"{entry.path!r:.200} has an invalid kind or size.")
    if SURROGATE.search(entry.path):
        return replace(entry, problem="its name is not UTF-8")
    if entry.problem or entry.kind == send_files.SPECIAL:
        return replace(entry, problem=one_line(entry.problem)[:200] or "it is not a file")
    if entry.kind == send_files.LINK and (problem := link_problem(entry)):
        return replace(entry, problem=problem)
    return replace(entry, sha256="")


def link_problem(entry: Entry) -> str:
    """Return why a link is left out, or ''.

    Links inside of the folder first go up and then down, so that they stay inside also if they lead through each other.
    """
    parts = entry.target.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    is_below = not any(part in ("", ".", "..") or "\0" in part for part in parts[ups:])
    if not SURROGATE.search(entry.target) and is_below and ups <= entry.path.count("/"):
        return ""
    return f"it is a link to {one_line(entry.target)[:200]}, which is not inside of this folder"
